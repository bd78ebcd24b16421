"""What an evaluation answers: one action, or a hold; each with all the gates that were read.

Stage: between a family's `decide` and those who write its answer down. A family's actions are classes of its own that
have what `Action` asks for, so that a row of the table `decisions` is written without knowing the family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol

from decisions.kernel.readings import GateT, Reading


class Action(Protocol[GateT]):
    """Something to do now."""

    @property
    def action(self) -> str:
        """What to do: `split`."""

    @property
    def arguments(self) -> Mapping[str, object]:
        """What to do it to, as JSON can hold it: `{"segments": [3]}`."""

    @property
    def reason(self) -> str:
        """What led to it, in a word."""

    @property
    def gates(self) -> tuple[Reading[GateT], ...]:
        """All the gates that were read, in order."""


@dataclass(frozen=True, slots=True)
class Hold(Generic[GateT]):
    """Do nothing, and say why: `binding` is the one reading that holds (`decisions.kernel.precedence`)."""

    binding: Reading[GateT]
    gates: tuple[Reading[GateT], ...]
    due: int | None = None
    """See `next_due`."""

    @property
    def gate(self) -> GateT:
        """The binding gate."""
        return self.binding.gate


def next_due(answer: Action[GateT] | Hold[GateT]) -> int | None:
    """The earliest instant (ms) at which the same evaluation would act with nothing changed but the time, or None.

    None also for an action, which is due now.
    """
    return answer.due if isinstance(answer, Hold) else None
