"""The table `brakes`: acts of people and of the executor that make the executor wait.

Stage: under `executor.brakes`, which obeys them, the commands that pause and approve, and displays. Everybody may
write, one act at a time: each takes the next number, as a Delta app transaction. Of two concurrent acts one
conflicts, reads the other, and is decided again. So every act is made with knowledge of all before it, and of a
concurrent approval and rejection one is refused.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from deltalake.exceptions import CommitFailedError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from lake.tables import OpenTable, create_table
from lake.tail import Tail
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import BRAKES, BrakeRow

NUMBERS = "anabranch-brakes"
"""Name of the act number in the table's log."""
ALL = "*"
"""Subject of acts that concern everything."""
MAX_RACES = 100
"""Attempts to write an act while others write theirs."""
MAX_DELAY_SECONDS = 0.05
"""Longest delay before another attempt, seconds; random."""

Kind = Literal["approve", "reject", "pause", "resume", "stop"]


@dataclass(frozen=True)
class SafeguardAct:
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
    """Effect of all acts up to `number`. Other threads than the one that applies acts may read it."""

    number: int = 0
    pauses: dict[str, SafeguardAct] = field(default_factory=dict)
    """The newest pause of each subject, namespace or `ALL` without a later resume; it may have expired."""
    stop: SafeguardAct | None = None
    """Set if the executor stopped itself and nobody has resumed since."""
    approvals: dict[str, SafeguardAct] = field(default_factory=dict)
    rejections: dict[str, SafeguardAct] = field(default_factory=dict)
    """By decision id."""
    resumed_at: datetime | None = None
    """Time of the last resume of everything; earlier failures do not count any more."""

    def take(self, act: SafeguardAct) -> None:
        """Apply the next act by number; ignore a kind of a newer release."""
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

    def pause_of(self, subjects: Iterable[str], now: datetime) -> SafeguardAct | None:
        """Return the first pause in effect at an instant among those of some subjects."""
        for subject in subjects:
            pause = self.pauses.get(subject)
            if pause is not None and (pause.until is None or now < pause.until):
                return pause
        return None

    def paused(self, now: datetime) -> list[SafeguardAct]:
        """Return all pauses in effect at an instant, by subject."""
        return [pause for name in sorted(self.pauses) if (pause := self.pause_of([name], now))]

    def verdict_on(self, decision_id: str) -> SafeguardAct | None:
        """Return the approval or rejection of a decision."""
        return self.rejections.get(decision_id) or self.approvals.get(decision_id)


class BrakeReader:
    """Reader of the table `brakes` of a lake; without acts while it is missing. For one thread."""

    def __init__(self, lake: str) -> None:
        self._tail = Tail(lake, BRAKES, tuple(BrakeRow.model_fields), order=("number",), backlog=None)
        self.acts = Acts()

    def read(self) -> bool:
        """Apply new acts and return if there were any. Raises `DeltaError` or `OSError`, keeping earlier acts."""
        before = self.acts.number
        for row in self._tail.read(range(1, before + 1)):
            if row["number"] > self.acts.number:
                self.acts.take(SafeguardAct(kind=row["act"], **{name: row[name] for name in _SHARED}))
        return self.acts.number > before


class BrakeLog(BrakeReader):
    """Writer of the table `brakes` of a lake, which is created if missing."""

    def __init__(self, lake: str) -> None:
        """Open the log. Raises what Delta raises, and `LakeError`."""
        self._open = OpenTable(create_table(lake, BRAKES))
        super().__init__(lake)

    def write(self, make: Callable[[Acts], Sequence[SafeguardAct]]) -> list[SafeguardAct]:
        """Commit the acts that `make` returns for all earlier ones, with their numbers; none: no commit.

        `make` is called again whenever another act came first. Raises what it raises, and what Delta raises.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(CommitFailedError),
            stop=stop_after_attempt(MAX_RACES),
            wait=wait_random(0, MAX_DELAY_SECONDS),
            reraise=True,
        )
        return retrying(self._write_once, make)

    def _write_once(self, make: Callable[[Acts], Sequence[SafeguardAct]]) -> list[SafeguardAct]:
        # Open a version first and read at least up to it, so that any later act conflicts.
        self._open.newest()
        self.read()
        first = self.acts.number + 1
        if acts := [replace(act, number=number) for number, act in enumerate(make(self.acts), first)]:
            self._open.append(to_arrow(BRAKES, [_row(act) for act in acts]), NUMBERS, acts[-1].number)
            self.read()
        return acts


_SHARED = ("number", "subject", "decision_id", "reason", "until", "actor", "at")
"""Fields of an act that are columns of the same name."""


def _row(act: SafeguardAct) -> BrakeRow:
    return BrakeRow(act=act.kind, day=act.at.date(), **{name: getattr(act, name) for name in _SHARED})
