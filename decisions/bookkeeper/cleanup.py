"""Old copies that may be deleted: all records that name them lead to an equal copy on another cluster.

Stage: over `seen`, beside `switching`. Source: PIP-477 phase 6. Attributions are looked at again here (hole 9), as a
lost promotion is no failure; a deletion waits for the longer of the two windows (hole 2). `force` passes the window
only.
"""

from dataclasses import dataclass

from decisions.bookkeeper.account import BAD, UNKNOWN, BookieAccount
from decisions.bookkeeper.gates import BookieGate
from decisions.bookkeeper.ids import require_distinct
from decisions.bookkeeper.seen import BookieView, Item, difference_of_copies, require_routing
from schemas.bookie_answers import Step
from schemas.bookies import BookieSnapshot, SwitchSettings

HOUR_MS = 3_600_000


@dataclass(frozen=True)
class CleanupCandidate:
    """An old copy, and what keeps it."""

    ledger: int
    items: tuple[Item, ...]
    cluster: str | None
    """Where its records lead; None: nowhere, or to several."""
    gate: BookieGate | None
    reason: str


def window_ms(settings: SwitchSettings) -> int:
    """Return for how long old copies are kept after the last promotion: the longer of the two windows."""
    return round(max(settings.dual_read_timeout_days * 24, settings.rollback_window_hours) * HOUR_MS)


def has_passed(snapshot: BookieSnapshot) -> bool:
    """Return whether old copies may be deleted without force."""
    since = snapshot.progress.promoted_at
    return since is not None and snapshot.now >= since + window_ms(snapshot.settings)


def cleanup_candidates(seen: BookieView, source: str) -> list[CleanupCandidate]:
    """Return each ledger of `source` that was copied, or that another schema or cursor has a copy of."""
    ids = {
        item.ledger
        for item in seen.items
        if item.kind != "data" and item.ledger >= 0 and item.cluster not in (None, source)
    }
    directive = seen.snapshot.directive
    if directive is not None and directive.source == source:
        ids |= {entry.ledger for entry in seen.progress.verified}
    return [_candidate(seen, source, entry) for entry in sorted(ids) if seen.ledger(source, entry) is not None]


def require_window(seen: BookieView, account: BookieAccount) -> bool:
    """Require that the window of a deletion has passed."""
    wait, since, now = window_ms(seen.snapshot.settings), seen.progress.promoted_at, seen.snapshot.now
    end = None if since is None else since + wait
    detail = "nothing says when the last ledger was promoted" if end is None else f"{max(end - now, 0)} ms are left"
    return account.require(
        BookieGate.WINDOW,
        end is not None and now >= end,
        f"{detail}; --force deletes before that",
        measured=None if since is None else float(now - since),
        limit=float(wait),
        margin=None if end is None else float(now - end),
        eligible_at=end,
    )


def plan_cleanup(seen: BookieView, account: BookieAccount) -> list[Step]:
    """The deletions of the request, or what they would be; every copy that is kept has its reason."""
    request, directive = seen.snapshot.request, seen.snapshot.directive
    source = request.src_cluster_filter or (directive.source if directive else None)
    if source is None:
        account.require(BookieGate.REQUEST, False, "no switch was asked for: name a cluster with --src-cluster", BAD)
        return []
    if source not in seen.clusters:
        account.require(BookieGate.REGISTERED, False, f"{source} is not registered", UNKNOWN)
        return []
    account.require(BookieGate.LISTED, seen.listed(source), f"the ledgers of {source} were not listed")
    account.require(BookieGate.ONE_ACTIVE, len(seen.active) == 1, f"ACTIVE are: {', '.join(seen.active) or 'none'}")
    require_distinct(seen, account, source, *(candidate for candidate in seen.clusters if candidate != source))
    account.require(BookieGate.NOT_ACTIVE, source not in seen.active, f"{source} is ACTIVE: nothing is deleted from it")
    require_routing(seen, account)
    if not request.force:
        require_window(seen, account)
    steps, deletions = list[Step](), 0
    epoch = directive.epoch if directive else 0
    for candidate in cleanup_candidates(seen, source):
        gate, reason = candidate.gate, candidate.reason
        if gate is None and request.max_deletions and deletions >= request.max_deletions:
            gate, reason = BookieGate.MAX_DELETIONS, f"{request.max_deletions} are deleted at a time"
        deletions += gate is None
        if gate is not None:
            account.note(gate, False, str(candidate.ledger), reason)
        here = seen.ledger(source, candidate.ledger)
        assert here is not None
        steps.append(
            Step(
                epoch=epoch,
                phase="CLEANUP",
                kind="ledger",
                object=candidate.items[0].object if candidate.items else str(candidate.ledger),
                action="delete" if gate is None else "keep_not_promoted",
                ledger=candidate.ledger,
                source=source,
                target=candidate.cluster,
                reason=reason,
                expectation={
                    "attributedTo": candidate.cluster,
                    "last": here.last,
                    "length": here.length,
                    "records": {item.object: item.version for item in candidate.items if item.kind != "data"},
                },
            )
        )
    account.require(
        BookieGate.DRY_RUN, not request.dry_run, f"{deletions} ledgers would be deleted: --no-dry-run deletes them"
    )
    return steps


def _candidate(seen: BookieView, source: str, ledger: int) -> CleanupCandidate:
    items = tuple(seen.naming.get(ledger, ()))

    def kept(gate: BookieGate, reason: str, cluster: str | None = None) -> CleanupCandidate:
        return CleanupCandidate(ledger, items, cluster, gate, reason)

    for item in items:
        if item.how == "corruption":
            return kept(BookieGate.ATTRIBUTION, f"{item.object} names it: {item.reason}")
        if item.cluster == source:
            return kept(BookieGate.ATTRIBUTED_ELSEWHERE, f"{item.object} is attributed to {source}")
    if beside := [path for path, number in seen.beside() if number == ledger]:
        return kept(BookieGate.ATTRIBUTED_ELSEWHERE, f"{beside[0]} names it as a ledger of another use")
    unread = seen.unknown()
    if unread := [record for record in unread if record.ledger < 0]:
        return kept(BookieGate.ATTRIBUTION, f"{unread[0].object} cannot be read, and may name it: {unread[0].reason}")
    if not items:
        return _unnamed(
            seen, ledger, kept(BookieGate.PROMOTED, "nothing names it, and it was never promoted: its owner deletes it")
        )
    clusters = {item.cluster for item in items}
    if len(clusters) != 1:
        return kept(BookieGate.ATTRIBUTION, f"records lead to {', '.join(sorted(map(str, clusters)))}")
    cluster = str(items[0].cluster)
    here, there = seen.ledger(source, ledger), seen.ledger(cluster, ledger)
    if there is None or not there.closed or not there.readable:
        condition = "does not have it" if there is None else "has it open" if there.readable else "cannot read it"
        return kept(BookieGate.TARGET_HOLDS_IT, f"{cluster} {condition}", cluster)
    difference = difference_of_copies(here, there) if here is not None else None
    if difference is not None:
        return kept(BookieGate.TARGET_HOLDS_IT, f"{cluster} has another one: {difference}", cluster)
    return CleanupCandidate(ledger, items, cluster, None, f"{cluster} has it, and every record leads there")


def _unnamed(seen: BookieView, ledger: int, keep: CleanupCandidate) -> CleanupCandidate:
    directive = seen.snapshot.directive
    promoted = any(promotion.ledger == ledger and promotion.by != "rollover" for promotion in seen.progress.promoted)
    if directive is None or not promoted:
        return keep
    return CleanupCandidate(ledger, (), directive.target, None, "it was promoted, and nothing names it any more")
