"""Phase of a switch, read off the clusters and records, so that nothing stored can disagree.

Stage: over `work` and `cleanup`, under `switching` and `decide`. Phases are those of PIP-477; SWITCH_TRIGGERED is left
when the registry has the target as ACTIVE, LIVE_DUAL_READ when every broker has taken the switch up. Their names are in
`schemas.bookies`.
"""

from dataclasses import dataclass

from decisions.bookkeeper.cleanup import cleanup_candidates
from decisions.bookkeeper.seen import BookieView
from decisions.bookkeeper.work import BUILDING, LedgerWork, Stage, ledger_works, rolled_over
from schemas.bookie_answers import Step
from schemas.bookies import Directive, Phase

ENDED: tuple[Phase, ...] = ("DONE", "DONE_WITH_FAILURES", "ROLLED_BACK")


@dataclass(frozen=True)
class SwitchStanding:
    """A switch as it stands."""

    phase: Phase
    directive: Directive | None
    works: list[LedgerWork]
    rollovers: list[Step]
    old_copies: int
    """Copies on the source that could be deleted."""

    @property
    def is_open(self) -> bool:
        """Tell if ledgers are still to be built or promoted."""
        return self.directive is not None and self.phase not in (*ENDED, "CLEANUP")

    def count(self, *stages: Stage) -> int:
        """Return the number of ledgers in these stages."""
        return sum(1 for work in self.works if work.stage in stages)


def switch_standing(seen: BookieView) -> SwitchStanding:
    """The phase and all that it follows from."""
    if (directive := seen.snapshot.directive) is None:
        return SwitchStanding("REGISTERED" if seen.clusters else "NOT_REGISTERED", None, [], [], 0)
    if directive.target not in seen.clusters:
        return SwitchStanding("NOT_REGISTERED", directive, [], [], 0)
    pending, rollovers = ledger_works(seen, directive), rolled_over(seen, directive)
    old = [candidate for candidate in cleanup_candidates(seen, directive.source) if candidate.gate is None]
    return SwitchStanding(
        _phase(seen, directive, pending, rollovers, len(old)), directive, pending, rollovers, len(old)
    )


def _phase(seen: BookieView, directive: Directive, pending: list[LedgerWork], rollovers: list[Step], old: int) -> Phase:
    if seen.active != [directive.target]:
        return "SWITCH_TRIGGERED"
    if any(entry.epoch < directive.epoch or not entry.target_client for entry in seen.snapshot.brokers):
        return "LIVE_DUAL_READ"
    names = [entry.cluster for entry in seen.items if entry.kind != "data" and entry.cluster is not None]
    waits = any(entry != directive.target for entry in names) or bool(seen.unknown())
    listed = seen.listed(directive.source) and seen.listed(directive.target)
    # Of a source that is gone for good nothing has to be known when nothing is attributed to it.
    from_source = directive.source in names or bool(seen.unknown())
    if any(entry.stage in BUILDING for entry in pending) or (from_source and not listed):
        return "BUILD"
    if rollovers or any(entry.stage is Stage.BUILT for entry in pending):
        return "PROMOTE"
    if directive.kind == "rollback":
        return "DONE_WITH_FAILURES" if waits else "ROLLED_BACK"
    if old:
        return "CLEANUP"
    return "DONE_WITH_FAILURES" if waits else "DONE"
