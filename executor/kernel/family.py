"""What a family of decisions provides, so that the rest of the executor need not know which family it works on.

Stage: between the kernel (`decision`, `attempt`, `loop`) and the families' own folders (`executor.autoscale`).
`executor.process` makes an `Actor` for each family; the kernel finds it by the name in a row's column `family`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar


@dataclass(frozen=True)
class Decision:
    """One action to take; each family adds what it needs for it."""

    decision_id: str
    family: str
    subject: str

    def __str__(self) -> str:
        return f"the decision {self.decision_id} on {self.subject}"

    def replaces(self, earlier: Decision) -> bool:
        """Tell if an earlier decision on the same subject is no longer right, because this one was taken since."""
        return False


class MalformedDecision(Exception):
    """A row of `decisions` is no decision; the message says why."""


@dataclass(frozen=True)
class Act:
    """The subject is as it was decided on: the call is still to be made."""


@dataclass(frozen=True)
class Applied:
    """The decision has taken effect; `shown_by` are ids of what shows it, of segments for instance."""

    shown_by: tuple[int, ...] = ()


@dataclass(frozen=True)
class Superseded:
    """The subject is no longer as it was decided on, and not by our doing."""

    why: str


@dataclass(frozen=True)
class Gone:
    """There is no such subject, it was said. A copy that lags says that of a new one too, so it is asked again."""

    why: str


Verdict = Act | Applied | Superseded | Gone


@dataclass(frozen=True)
class Accepted:
    """A call was answered with success."""


@dataclass(frozen=True)
class CallRefused:
    """The call was refused: the same call will not succeed later."""

    reason: str
    is_absence: bool = False
    """It was said that there is nothing to act on (404): worth another look, as for `Gone`."""
    is_conflict: bool = False
    """It was said that the subject is not as it was seen, or that somebody else is changing it (409): the call may do
    once that shows."""


@dataclass(frozen=True)
class NoAnswer:
    """Nothing is known: no connection, no answer in time, an error of the server, or an answer that makes no sense."""

    reason: str
    denied: bool = False
    """Not authenticated or not allowed (401, 403): worth a slow retry, credentials get repaired."""


Answer = Accepted | CallRefused | NoAnswer


@dataclass(frozen=True)
class Seen:
    """What a look has shown, for the record."""

    details: Mapping[str, Any] = field(default_factory=dict)
    """A JSON object."""
    layout_epoch: int | None = None
    """None: the subject is gone, or has no layout."""


Chosen = TypeVar("Chosen", bound=Decision)
Live = TypeVar("Live")


class Actor(Protocol[Chosen, Live]):
    """Acts and judges for one family. `Live` is what a look at a subject shows; several threads use it at once."""

    def read(self, row: Mapping[str, Any]) -> Chosen:
        """The decision in a row with the columns of `decision.COLUMNS`; raises `MalformedDecision` and nothing else."""

    def namespace(self, subject: str) -> str | None:
        """The namespace (`tenant/namespace`) that a subject is in; None: in none. Total: raises for no subject."""

    def look(self, decision: Chosen) -> Live | NoAnswer:
        """The subject as it is now."""

    def judge(self, decision: Chosen, live: Live, may_have_called: bool) -> Verdict:
        """What to do about the decision; pure.

        `may_have_called`: a call for it may have gone out before this look, by this process or by one that left a
        durable intent. An effect without any such call is not ours.
        """

    def describe(self, decision: Chosen, live: Live) -> Seen:
        """What was seen; pure."""

    def call(self, decision: Chosen, live: Live, may_send: Callable[[], bool]) -> Answer:
        """The one call that the decision asks for, on a subject that was last seen as `live`.

        `may_send` is to be asked right before the first byte is sent; if it says no, that is `NoAnswer`.
        """


Actors = Mapping[str, Actor[Any, Any]]
"""Who acts, by the name of the family."""
