"""The precheck: whether a target can take copies under the source's ledger ids (I11), over both generators of ids.

Stage: under `switching`. BookKeeper gives short ids (31 bits) until a long generator exists, from another node
(PIP-477 looks at the long one alone). What a cluster has used is its largest ledger, or what it gave last.
"""

from __future__ import annotations

from decisions.bookies.account import Account
from decisions.bookies.gates import Gate
from decisions.bookies.seen import Seen
from schemas.bookie_answers import Precheck


def next_id(seen: Seen, cluster: str) -> int | None:
    """The next id that a cluster gives to a new client; None: not known."""
    found = seen.snapshot.generators.get(cluster)
    if found is None:
        return None
    return found.short if found.long is None else found.long


def largest_id(seen: Seen, cluster: str) -> int | None:
    """The largest id that is in use or was given by either generator; -1: none; None: not known."""
    found = seen.snapshot.generators.get(cluster)
    known = [max(seen.ledgers(cluster), default=-1)] if seen.listed(cluster) else []
    if found is not None:
        known += [found.short - 1, -1 if found.largest is None else found.largest]
        # The first id of a long generator is nobody's yet: only ids below the next one were given.
        known += [] if found.long is None or found.long & 0xFFFF_FFFF == 0 else [found.long - 1]
    return max(known) if found is not None else None


def precheck(seen: Seen, source: str | None, target: str, account: Account) -> Precheck:
    """Whether the target is beyond the source, and reachable; notes its gates."""
    generators = seen.snapshot.generators.get(target)
    reachable = generators is None or generators.reachable
    account.require(Gate.TARGET_CLIENT, reachable, generators.error if generators else None)
    used = None if source is None else largest_id(seen, source)
    following = next_id(seen, target)
    if used is None or following is None:
        whose = target if following is None else source
        beyond = False
        detail = f"nothing is known of the ids of {whose}"
    else:
        beyond = following > used
        detail = (
            f"the next id of {target} is {following}, {source} has used {used}: advance the target with "
            f"'anabranch bookies precheck --name {target} --advance', and restart what writes to it"
        )
    skip = seen.snapshot.settings.skip_idgen_precheck
    account.require(
        Gate.IDS_BEYOND, beyond or skip, detail,
        measured=None if following is None else float(following), limit=None if used is None else float(used),
        margin=None if following is None or used is None else float(following - used),
    )  # fmt: skip
    return Precheck(
        ready=reachable and (beyond or skip),
        idgen_advanced_beyond_source=beyond,
        source_cluster_name=source,
        target_cluster_name=target,
        source_max_high_order_bit=None if used is None else max(used, 0) >> 32,
        target_max_high_order_bit=None if following is None else following >> 32,
        source_max_ledger_id=used,
        target_next_ledger_id=following,
    )


def apart(seen: Seen, account: Account) -> bool:
    """Whether the source still gives ids that the target cannot give (hole 11): looked at before every step."""
    directive = seen.snapshot.directive
    if directive is None or directive.target_ids_from is None or seen.snapshot.settings.skip_idgen_precheck:
        return True
    used = largest_id(seen, directive.source)
    if used is None:
        return True
    limit = directive.target_ids_from
    return account.require(
        Gate.IDS_APART, used < limit,
        f"{directive.source} has used the id {used}, {directive.target} gives ids from {limit} on: stop what still "
        f"makes ledgers on {directive.source}",
        measured=float(used), limit=float(limit), margin=float(limit - used),
    )  # fmt: skip
