"""Comparison of the backtested policy that ran with the record: matched, missed and extra actions.

Stage: under `running`. Pure. An action matches when the same hashes were split, or merged, within a tick. Each action
of either side counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.simulation.backtest.lives import Action

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

    def add(self, other: Agreement) -> None:
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
    on_record: Sequence[Action],
    backtested: Sequence[Action],
    decided: Sequence[tuple[int, str, int, int, str | None]],
    held_at: Callable[[int], str | None],
    guessed_at: Callable[[int], str | None],
    tick_ms: int,
) -> Agreement:
    """Compare the actions of a topic, both ascending.

    `decided`: recorded decisions: instant, kind, hashes, and the outcome of one that was not applied. `held_at`: the
    gate by which the job held at an instant. `guessed_at`: the assumption in force at an instant. Actions are the same
    within `tick_ms`.
    """
    found = Agreement()
    rest = list(backtested)
    missed: list[tuple[Action, Action | None]] = []
    unmatched = []
    for one in on_record:
        same = _nearest(one, rest, tick_ms)
        if same is None:
            unmatched.append(one)
        else:
            rest.remove(same)
            found.matched += 1
    for one in unmatched:
        late = _nearest(one, rest, LATELY_MS)
        if late is not None:
            rest.remove(late)
        missed.append((one, late))
    odd = sorted([*(one.at for one, _ in missed), *(one.at for one in rest)])
    for one, late in missed:
        if not _is_decided(one, decided):
            found.missed["not decided by the job"] += 1
        elif late is not None:
            found.missed["came more than a tick earlier" if late.at < one.at else "came more than a tick later"] += 1
        else:
            found.missed[_why(one.at, guessed_at, odd)] += 1
    for one in rest:
        ended = [
            status
            for at, kind, start, end, status in decided
            if status and (kind, start, end) == (one.kind, one.start, one.end) and abs(at - one.at) <= tick_ms
        ]
        if ended:
            found.extra[f"was decided, and then {ended[0]}"] += 1
        elif guessed_at(one.at) is not None or (odd and odd[0] < one.at):
            found.extra[_why(one.at, guessed_at, odd)] += 1
        else:
            gate = held_at(one.at)
            found.extra[f"the job held by {gate}" if gate else "unexplained"] += 1
    return found


def _nearest(one: Action, others: Sequence[Action], within: int) -> Action | None:
    same = [other for other in others if other[1:4] == one[1:4] and abs(other.at - one.at) <= within]
    return min(same, key=lambda other: abs(other.at - one.at), default=None)


def _is_decided(one: Action, decided: Sequence[tuple[int, str, int, int, str | None]]) -> bool:
    return one.decision is not None or any(
        (kind, start, end) == (one.kind, one.start, one.end) and 0 <= one.at - at <= _DECIDED_MS
        for at, kind, start, end, _ in decided
    )


def _why(at: int, guessed_at: Callable[[int], str | None], odd: Sequence[int]) -> str:
    guess = guessed_at(at)
    if guess is not None:
        return f"demand was guessed: {guess}"
    return "after another difference" if odd and odd[0] < at else "unexplained"
