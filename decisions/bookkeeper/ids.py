"""Precheck of a target: it takes copies under the source's ledger ids (I11), and is another cluster.

Stage: under `switching`. BookKeeper gives short ids (31 bits) until a long generator exists, from another node
(PIP-477 looks at the long one alone). A cluster has used its largest ledger and whatever it gave last, and goes on
with its next id. A cluster that cannot be reached is unknown, and unknown ids hold.
"""

from decisions.bookkeeper.account import BookieAccount
from decisions.bookkeeper.gates import BookieGate
from decisions.bookkeeper.seen import BookieView
from decisions.bookkeeper.uris import read_uri, share_metadata
from schemas.bookie_answers import Precheck


def next_id(seen: BookieView, cluster: str) -> int | None:
    """Return the next id that a cluster gives to a new client; None: not known."""
    generators = seen.snapshot.generators.get(cluster)
    if generators is None or not generators.reachable:
        return None
    return generators.short if generators.long is None else generators.long


def largest_id(seen: BookieView, cluster: str) -> int | None:
    """Return the largest id that is in use or was given by either generator; -1: none; None: not known."""
    generators = seen.snapshot.generators.get(cluster)
    if generators is None or not generators.reachable:
        return None
    ids = [max(seen.ledgers(cluster), default=-1), generators.short - 1]
    ids += [] if generators.largest is None else [generators.largest]
    # The first id of a long generator is nobody's yet: only ids below the next one were given.
    ids += [] if generators.long is None or generators.long & 0xFFFF_FFFF == 0 else [generators.long - 1]
    return max(ids)


def reserved_id(seen: BookieView, cluster: str) -> int | None:
    """Return the largest id that a cluster has used or gives next; None: not known."""
    used, following = largest_id(seen, cluster), next_id(seen, cluster)
    return None if used is None or following is None else max(used, following)


def require_distinct(seen: BookieView, account: BookieAccount, *names: str) -> bool:
    """Require that no two names are one BookKeeper cluster, and that each is the one that was registered."""
    for name in names:
        generators, entry = seen.snapshot.generators.get(name), seen.clusters.get(name)
        observed = generators.instance if generators is not None else None
        recorded = entry.instance if entry is not None else None
        if not account.require(
            BookieGate.INSTANCE,
            None in (observed, recorded) or observed == recorded,
            f"{name} has the instance id {observed}, and was registered with {recorded}: its metadata were formatted "
            "anew, or its address leads to another cluster; register that one under a name of its own",
        ):
            return False
    pairs = [(first, other) for index, first in enumerate(names) for other in names[index + 1 :]]
    same = [(first, other) for first, other in pairs if _are_one(seen, first, other)]
    return account.require(
        BookieGate.INSTANCE,
        not same,
        "{} and {} are one BookKeeper cluster: they have the same instance id or address. Nothing is copied to or "
        "deleted from a cluster under two names; unregister one of them".format(*same[0])
        if same
        else None,
    )


def _are_one(seen: BookieView, first: str, other: str) -> bool:
    """Return whether two names are known to lead to one cluster."""
    uris = [read_uri(seen.clusters[name].metadata_service_uri) for name in (first, other) if name in seen.clusters]
    return bool(seen.instances(first) & seen.instances(other)) or (len(uris) > 1 and share_metadata(*uris))


def precheck_ids(seen: BookieView, source: str | None, target: str, account: BookieAccount) -> Precheck:
    """Return whether the target is beyond the source, reachable and another cluster; notes its gates."""
    generators = seen.snapshot.generators.get(target)
    reachable = generators is None or generators.reachable
    account.require(BookieGate.TARGET_CLIENT, reachable, generators.error if generators else None)
    distinct = require_distinct(seen, account, *([] if source is None else [source]), target)
    used = None if source is None else largest_id(seen, source)
    reserved = None if source is None else reserved_id(seen, source)
    following = next_id(seen, target)
    if reserved is None or following is None:
        whose = target if following is None else source
        unknown = seen.snapshot.generators.get(whose or "")
        beyond = False
        detail = f"nothing is known of the ids of {whose}" + (
            f": {unknown.error}" if unknown is not None and unknown.error else ""
        )
    else:
        # Equal next ids overlap: both clusters would give the same id.
        beyond = following > reserved
        detail = (
            f"the next id of {target} is {following}, {source} has used {used} and goes on with "
            f"{next_id(seen, source or '')}: advance the target with "
            f"'anabranch bookies precheck --name {target} --advance', and restart what writes to it"
        )
    skip = seen.snapshot.settings.skip_idgen_precheck
    account.require(
        BookieGate.IDS_BEYOND,
        beyond or skip,
        detail,
        measured=None if following is None else float(following),
        limit=None if reserved is None else float(reserved),
        margin=None if following is None or reserved is None else float(following - reserved),
    )
    return Precheck(
        ready=reachable and distinct and (beyond or skip),
        idgen_advanced_beyond_source=beyond,
        source_cluster_name=source,
        target_cluster_name=target,
        source_max_high_order_bit=None if used is None else max(used, 0) >> 32,
        target_max_high_order_bit=None if following is None else following >> 32,
        source_max_ledger_id=used,
        source_next_ledger_id=None if source is None else next_id(seen, source),
        target_next_ledger_id=following,
    )


def check_ids_apart(seen: BookieView, account: BookieAccount) -> bool:
    """Require that the source gives no id that the target can give (hole 11); unknown ids hold."""
    directive = seen.snapshot.directive
    if directive is None or directive.target_ids_from is None or seen.snapshot.settings.skip_idgen_precheck:
        return True
    used = largest_id(seen, directive.source)
    limit = directive.target_ids_from
    if used is None:
        generators = seen.snapshot.generators.get(directive.source)
        why = f": {generators.error}" if generators is not None and generators.error else ""
        detail = f"nothing is known of the ids of {directive.source}{why}; it may give ids from {limit} on as well"
        return account.require(BookieGate.IDS_APART, False, detail, limit=float(limit))
    return account.require(
        BookieGate.IDS_APART,
        used < limit,
        f"{directive.source} has used the id {used}, {directive.target} gives ids from {limit} on: stop what still "
        f"makes ledgers on {directive.source}",
        measured=float(used),
        limit=float(limit),
        margin=float(limit - used),
    )
