"""Comparison of the backtested policy that ran with the record: matched, missed and extra actions.

Stage: under `running`. Pure. An action matches when the same hashes were split, or merged, within a tick. Each action
of either side counts once.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.simulation.backtest.incarnations import RecordedAction

LATELY_MS = 1_800_000
"""Equal actions within this time count as the same one at another time."""
_DECIDED_MS = 900_000
"""From a decision to its action."""


@dataclass
class Agreement:
    """Agreement of a backtest with the record."""

    matched: int = 0
    missed: Counter[str] = field(default_factory=Counter)
    """Actions on record that did not come again, by reason."""
    extra: Counter[str] = field(default_factory=Counter)
    """Actions that are not on record, by reason."""

    @property
    def share(self) -> float | None:
        """Return the share of all actions, of either side, that agree; None: there was no action."""
        both = self.matched + self.missed.total() + self.extra.total()
        return self.matched / both if both else None

    def add(self, other: "Agreement") -> None:
        """Add the counts of other topics."""
        self.matched += other.matched
        self.missed += other.missed
        self.extra += other.extra

    def to_json(self) -> dict[str, Any]:
        """Return the counts for scripts."""
        return {
            "matched": self.matched,
            "missed": dict(self.missed.most_common()),
            "extra": dict(self.extra.most_common()),
            "share": None if self.share is None else round(self.share, 4),
        }


def agreement(
    on_record: Sequence[RecordedAction],
    backtested: Sequence[RecordedAction],
    decided: Sequence[tuple[int, str, int, int, str | None]],
    held_at: Callable[[int], str | None],
    assumption_at: Callable[[int], str | None],
    tick_ms: int,
    later_ms: int = 0,
) -> Agreement:
    """Compare the actions of a topic, both ascending; backtested ones `later_ms` after their decisions.

    `decided`: recorded decisions: instant, kind, hashes, and the outcome of one that was not applied. `held_at`: the
    gate by which the job held at an instant. `assumption_at`: the assumption in force then. Actions are the same within
    `tick_ms`.
    """
    result = Agreement()
    surplus = list(backtested)
    missed: list[tuple[RecordedAction, RecordedAction | None]] = []
    unmatched = []
    for recorded in on_record:
        if (same := _nearest(recorded, surplus, tick_ms)) is None:
            unmatched.append(recorded)
        else:
            surplus.remove(same)
            result.matched += 1
    for recorded in unmatched:
        if (late := _nearest(recorded, surplus, LATELY_MS)) is not None:
            surplus.remove(late)
        missed.append((recorded, late))
    odd = sorted([*(action.at for action, _ in missed), *(action.at for action in surplus)])
    for recorded, late in missed:
        if not _is_decided(recorded, decided):
            result.missed["not decided by the job"] += 1
        elif late is not None:
            result.missed[
                "came more than a tick earlier" if late.at < recorded.at else "came more than a tick later"
            ] += 1
        else:
            result.missed[_why(assumption_at(recorded.at), recorded.at, odd)] += 1
    for extra in surplus:
        at = extra.at - later_ms
        ended = [
            status
            for decided_at, kind, start, end, status in decided
            if status and (kind, start, end) == (extra.kind, extra.start, extra.end) and abs(decided_at - at) <= tick_ms
        ]
        if ended:
            result.extra[f"was decided, and then {ended[0]}"] += 1
        elif (guess := assumption_at(at)) is not None or (odd and odd[0] < extra.at):
            result.extra[_why(guess, extra.at, odd)] += 1
        else:
            gate = held_at(at)
            result.extra[f"the job held by {gate}" if gate else "unexplained"] += 1
    return result


def _nearest(action: RecordedAction, candidates: Sequence[RecordedAction], within: int) -> RecordedAction | None:
    same = [other for other in candidates if other[1:4] == action[1:4] and abs(other.at - action.at) <= within]
    return min(same, key=lambda other: abs(other.at - action.at), default=None)


def _is_decided(action: RecordedAction, decided: Sequence[tuple[int, str, int, int, str | None]]) -> bool:
    return action.decision is not None or any(
        (kind, start, end) == (action.kind, action.start, action.end) and 0 <= action.at - decided_at <= _DECIDED_MS
        for decided_at, kind, start, end, _ in decided
    )


def _why(guess: str | None, instant: int, odd: Sequence[int]) -> str:
    if guess is not None:
        return f"demand was guessed: {guess}"
    return "after another difference" if odd and odd[0] < instant else "unexplained"
