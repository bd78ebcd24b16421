"""One instant of the small world, immutable: what is durable, what is in memory, what is on its way.

The topic begins with the segments 0 and 1; the n-th split (from 0) makes 2n + 2 and 2n + 3. Decisions split the lowest
active segments. Merges would add nothing: the protocol sees an action, its effect and a layout that moved on. In the
family `bundles` the "segments" are two bundles at their source, and a "split" moves one to its destination.
"""

from __future__ import annotations

from typing import NamedTuple

NAMES = ("A", "B")


class Layout(NamedTuple):
    """The topic's layout: which life of the topic, and the segments that were split in it, in order."""

    life: int = 0
    splits: tuple[int, ...] = ()
    elsewhere: tuple[int, ...] = ()
    """Bundles that somebody moved to a third broker."""

    @property
    def active(self) -> tuple[int, ...]:
        """Active segments, lowest first."""
        return tuple(i for i in range(2 + 2 * len(self.splits)) if i not in self.splits)

    def split(self, segment: int) -> Layout:
        """After a split of an active segment, or the arrival of a bundle at its destination."""
        return Layout(self.life, (*self.splits, segment), tuple(i for i in self.elsewhere if i != segment))

    def divert(self, bundle: int) -> Layout:
        """After the arrival of a bundle at a third broker."""
        return self._replace(elsewhere=(*self.elsewhere, bundle))


class Decision(NamedTuple):
    """A row of `decisions`, with what `outcomes` says of it."""

    on: Layout
    segment: int
    begun: bool = False
    """An intent is on record."""
    calls: int = 0
    """Calls on record."""
    end: str = ""
    told: bool = False
    """A message that says so is on its way to the job."""
    heard: bool = False
    """The job has recorded it."""


class Call(NamedTuple):
    """A request on its way, or its answer."""

    by: int
    decision: int
    answer: str = ""
    """`accepted`, `refused`, or `elsewhere`: meant for another layout; empty: the server has not carried it out yet."""
    given_up: bool = False
    """Nobody waits for the answer."""
    seen: Layout = Layout(-1)
    """The layout that it is meant for, if calls are conditional."""


class Work(NamedTuple):
    """What a process knows of an open decision."""

    at: str = "new"
    """`new`: without an intent; `braked`: the same, and not to go on; `begun`; or `ended`."""
    calls: int = 0
    open_end: bool = False
    refusals: int = 0
    absences: int = 0
    """Looks in a row that showed neither the layout decided on nor the effect of a call that may have had one."""
    known: Layout | None = None
    """The layout at the last delay: no copy lags longer than that."""


class Executor(NamedTuple):
    """One process. What is here is gone with a crash."""

    at: str = "standby"
    """Its next step: down, standby, fence, read, idle, check, send, calling, look again, retry, announce, or `end
    STATUS`."""
    token: int = 0
    holds: bool = False
    """It believes that its lease holds, by its own steady clock."""
    frozen: bool = False
    decision: int = 0
    """The one that is being tried."""
    answer: str = ""
    """Of the call of this try."""
    seen: Layout = Layout(-1)
    """The layout at the last look, if calls are conditional."""
    works: tuple[Work, ...] = ()
    """By decision."""
    announces: tuple[int, ...] = ()
    """Decisions whose end it announces until the job has heard it."""

    @property
    def work(self) -> Work:
        """Of the decision that is being tried."""
        return self.works[self.decision]


class State(NamedTuple):
    """The world."""

    faults: int
    layout: Layout = Layout()
    before: Layout = Layout()
    """The layout before its last change: what a copy that lags shows."""
    decisions: tuple[Decision, ...] = ()
    holder: int = -1
    """Who has the lease, as the lake says; -1: nobody."""
    run_out: bool = False
    """That lease was not renewed in time."""
    token: int = 0
    """The newest lease's number."""
    fence: int = 0
    """The newest number that was left in `outcomes`."""
    executors: tuple[Executor, Executor] = (Executor(), Executor())
    calls: tuple[Call, ...] = ()
    effects: tuple[tuple[int, int], ...] = ()
    """Decision and life, for each effect of a call: kept for the check, nobody in the world sees it."""


class Step(NamedTuple):
    """What somebody does: `A`, `B`, or `world`."""

    who: str
    what: str
    how: str = ""
    decision: int | None = None
    """Which one it is about; None: there is only one, or it is about all."""

    def __str__(self) -> str:
        which = "" if self.decision is None else f" [{self.decision + 1}]"
        return f"{self.who:<6} {self.what}{which}{': ' + self.how if self.how else ''}"
