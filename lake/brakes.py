"""The table `brakes`: what people, and the executor, have told the executor to wait for, and how an act is added.

Stage: under `executor.brakes`, which obeys, the commands that brake and approve, and whoever shows brakes. Everybody
may write, but one act at a time: each takes the next number, as a Delta app transaction. Of two at once one conflicts,
reads what the other has done, and decides again whether it still makes sense. So an act is always made knowing all
before it, and of an approval and a rejection at the same moment one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from deltalake.exceptions import CommitFailedError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from lake.tables import OpenTable, create_table
from lake.tail import Tail
from schemas.arrow import to_arrow
from schemas.tables import BRAKES, BrakeRow

NUMBERS = "anabranch-brakes"
"""Names the numbers of the acts in the table's log."""
ALL = "*"
"""The subject of what concerns everything."""
MAX_RACES = 100
"""How often an act is tried while others write theirs."""
MAX_DELAY_SECONDS = 0.05
"""Longest delay before it is tried again; random."""

Kind = Literal["approve", "reject", "pause", "resume", "stop"]


@dataclass(frozen=True)
class Act:
    """One act; the columns of `brakes`."""

    kind: Kind
    subject: str
    reason: str
    actor: str
    at: datetime
    decision_id: str | None = None
    until: datetime | None = None
    number: int = 0
    """0: not yet written."""

    def __str__(self) -> str:
        return f"by {self.actor} at {self.at:%Y-%m-%d %H:%M:%S} UTC: {self.reason}"


class ActRefused(Exception):
    """The act makes no sense (any more); the message says why."""


@dataclass
class Acts:
    """What all acts up to `number` come to. Readable from other threads than the one that takes acts."""

    number: int = 0
    pauses: dict[str, Act] = field(default_factory=dict)
    """The newest pause of each subject, namespace or `ALL` that was not resumed; it may have ended by itself."""
    stop: Act | None = None
    """The executor stopped itself, and nobody has resumed since."""
    approvals: dict[str, Act] = field(default_factory=dict)
    rejections: dict[str, Act] = field(default_factory=dict)
    """By the id of the decision."""
    resumed_at: datetime | None = None
    """When everything was last resumed: failures before that count no more."""

    def take(self, act: Act) -> None:
        """One more act, in the order of numbers; a kind of a newer release changes nothing."""
        self.number = act.number
        if act.kind == "pause":
            self.pauses[act.subject] = act
        elif act.kind == "stop":
            self.stop = act
        elif act.kind == "resume":
            self.pauses.pop(act.subject, None)
            if act.subject == ALL:
                self.stop, self.resumed_at = None, act.at
        elif act.kind in ("approve", "reject") and act.decision_id is not None:
            (self.approvals if act.kind == "approve" else self.rejections)[act.decision_id] = act

    def pause_of(self, subjects: Iterable[str], now: datetime) -> Act | None:
        """The first pause at an instant among those of some subjects."""
        for subject in subjects:
            pause = self.pauses.get(subject)
            if pause is not None and (pause.until is None or now < pause.until):
                return pause
        return None

    def paused(self, now: datetime) -> list[Act]:
        """All pauses at an instant, by subject."""
        return [pause for name in sorted(self.pauses) if (pause := self.pause_of([name], now))]

    def verdict_on(self, decision_id: str) -> Act | None:
        """The approval or rejection of a decision."""
        return self.rejections.get(decision_id) or self.approvals.get(decision_id)


class BrakeReader:
    """What the acts in the table `brakes` of a lake come to; none when it is missing. One thread uses it."""

    def __init__(self, lake: str) -> None:
        self._tail = Tail(lake, BRAKES, tuple(BrakeRow.model_fields), order=("number",), backlog=None)
        self.acts = Acts()

    def read(self) -> bool:
        """Takes in what is new; whether anything was. Raises `DeltaError` or `OSError`: what was read stays."""
        before = self.acts.number
        for row in self._tail.read(range(1, before + 1)):
            if row["number"] > self.acts.number:
                self.acts.take(_act(row))
        return self.acts.number > before


class BrakeLog(BrakeReader):
    """The table `brakes` of a lake, made if it is missing, for those who write."""

    def __init__(self, lake: str) -> None:
        """Raises what Delta raises, and `LakeError`."""
        self._open = OpenTable(create_table(lake, BRAKES))
        super().__init__(lake)

    def write(self, make: Callable[[Acts], Sequence[Act]]) -> list[Act]:
        """One commit with the acts that `make` gives for all before them, with their numbers; none: no commit.

        `make` is called again whenever another act came first. Raises what it raises, and what Delta raises.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(CommitFailedError),
            stop=stop_after_attempt(MAX_RACES),
            wait=wait_random(0, MAX_DELAY_SECONDS),
            reraise=True,
        )
        return retrying(self._write_once, make)

    def _write_once(self, make: Callable[[Acts], Sequence[Act]]) -> list[Act]:
        # The table is opened at a version first, and read up to that one at least: what comes later conflicts.
        self._open.newest()
        self.read()
        first = self.acts.number + 1
        acts = [replace(act, number=number) for number, act in enumerate(make(self.acts), first)]
        if acts:
            self._open.append(to_arrow(BRAKES, [_row(act) for act in acts]), NUMBERS, acts[-1].number)
            self.read()
        return acts


def _act(row: Mapping[str, Any]) -> Act:
    return Act(
        kind=row["act"], subject=row["subject"], reason=row["reason"], actor=row["actor"], at=row["at"],
        decision_id=row["decision_id"], until=row["until"], number=row["number"],
    )  # fmt: skip


def _row(act: Act) -> BrakeRow:
    return BrakeRow(
        number=act.number, act=act.kind, subject=act.subject, decision_id=act.decision_id, reason=act.reason,
        until=act.until, actor=act.actor, at=act.at, day=act.at.date(),
    )  # fmt: skip
