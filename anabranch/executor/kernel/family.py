"""Interface between the kernel and a family of decisions.

Stage: between the kernel (`decision`, `attempt`, `loop`) and the families' packages (`anabranch.executor.autoscale`,
…). `anabranch.executor.process` makes an `Actor` for each family; the kernel finds it by the column `family` of a row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar


@dataclass(frozen=True)
class Decision:
    """One action to take; each family adds its own fields."""

    decision_id: str
    family: str
    subject: str
    repeats_late: ClassVar[bool] = True
    """A call may be repeated at any age, because a look proves that nothing has changed since the decision."""

    def __str__(self) -> str:
        return f"the decision {self.decision_id} on {self.subject}"

    def replaces(self, earlier: "Decision") -> bool:
        """Return whether this later decision makes an earlier one on the same subject obsolete."""
        return False

    def rests_on(self, earlier: "Decision") -> bool:
        """Return whether this later decision is right only if an earlier one on the same subject is applied."""
        return False


class MalformedDecision(Exception):
    """A row of `decisions` is not a valid decision; the message says why."""


@dataclass(frozen=True)
class StillNeeded:
    """Verdict: the subject is as it was decided on, and the call is still to be made."""


@dataclass(frozen=True)
class Applied:
    """Verdict: the decision took effect; `shown_by` are ids of the evidence, for instance of segments."""

    shown_by: tuple[int, ...] = ()


@dataclass(frozen=True)
class Superseded:
    """Verdict: the subject changed since the decision, and not through us."""

    why: str


@dataclass(frozen=True)
class Gone:
    """Verdict: the subject was reported missing; look again, as a stale replica may have answered."""

    why: str


Verdict = StillNeeded | Applied | Superseded | Gone


@dataclass(frozen=True)
class CallAccepted:
    """A call was answered with success."""


@dataclass(frozen=True)
class CallRefused:
    """A call was refused: the same call will not succeed later."""

    reason: str
    is_absence: bool = False
    """The subject was reported missing (404): worth another look, as for `Gone`."""
    is_conflict: bool = False
    """The subject has changed, or is being changed (409): the call may succeed later."""


@dataclass(frozen=True)
class NoAnswer:
    """Nothing is known: no connection, a time-out, a server error, or a response that makes no sense."""

    reason: str
    denied: bool = False
    """Not authenticated or not allowed (401, 403): retry slowly, until someone repairs the credentials."""
    is_outage: bool = False
    """Part of the cluster is away, and no call is made until it is back: giving up is no failure."""


Answer = CallAccepted | CallRefused | NoAnswer


ABSENT = {"topic": "gone"}
"""`Observation.details` of a subject that does not exist, as rows of `outcomes` have it."""


@dataclass(frozen=True)
class Observation:
    """Result of a look, for the record."""

    details: Mapping[str, Any] = field(default_factory=dict)
    """A JSON object."""
    layout_epoch: int | None = None
    """None: the subject is gone, or has no layout."""


Chosen = TypeVar("Chosen", bound=Decision)
Live = TypeVar("Live")


class Actor(Protocol[Chosen, Live]):
    """Acts and judges for one family. `Live` is the result of a look at a subject. Must be thread-safe."""

    def read(self, row: Mapping[str, Any]) -> Chosen:
        """Return the decision in a row (columns `decision.COLUMNS`). Raises only `MalformedDecision`."""

    def namespace(self, subject: str) -> str | None:
        """Return the namespace (`tenant/namespace`) of a subject; None: it has none. Never raises."""

    def look(self, decision: Chosen) -> Live | NoAnswer:
        """Return the subject's current state."""

    def judge(self, decision: Chosen, live: Live, may_have_called: bool) -> Verdict:
        """Return what to do about the decision; pure.

        `may_have_called`: a call for it may have gone out before this look, from this process or from one that left a
        durable intent. An effect without any such call is not ours.
        """

    def describe(self, decision: Chosen, live: Live) -> Observation:
        """Describe a look for the record; pure."""

    def call(self, decision: Chosen, live: Live, may_send: Callable[[], bool]) -> Answer:
        """Make the one call of the decision, on a subject last seen as `live`.

        `may_send` must be asked with the connection open, right before bytes are sent; if False, return `NoAnswer`.
        """


Actors = Mapping[str, Actor[Any, Any]]
"""Actors by the name of the family."""
