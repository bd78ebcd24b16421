"""Readings: one gate in one evaluation, with measured value, limit and when waiting would open it.

Stage: under every family. A family lists its gates in an enum of its own, whose values are the names on the wire.
Instants and durations are milliseconds.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Generic, TypeVar

import msgspec

from schemas.ids import canonical_json

GateT = TypeVar("GateT", bound=Enum)
"""A family's own enum of gates."""

MAX_INSTANT_MS = 253_402_300_799_000
"""The end of the year 9999: what would open later counts as never."""


class NamedReason(Enum):
    """Base of enums whose members have a name on the wire and a sentence for people."""

    _value_: str
    sentence: str

    def __new__(cls, name: str, sentence: str = "") -> "NamedReason":
        """Make a member whose value is the name alone."""
        member = object.__new__(cls)
        member._value_, member.sentence = name, sentence
        return member


class Reading(msgspec.Struct, Generic[GateT], frozen=True, gc=False):
    """One gate as it was found. A struct and not a dataclass, as an evaluation makes about ten of them."""

    gate: GateT
    passed: bool
    measured: float | None = None
    limit: float | None = None
    margin: float | None = None
    """Distance from the limit, positive on the passing side, in the gate's unit."""
    eligible_at: int | None = None
    """The earliest instant at which time alone could open it; None: time alone does not open it."""
    segment: int | None = None
    """The segment that was measured, when it is about one."""
    detail: str | None = None
    """What numbers cannot say: the rule that a policy breaks."""


def read_above(gate: GateT, measured: float, limit: float, segment: int | None = None) -> Reading[GateT]:
    """Passes when `measured` is strictly above `limit`."""
    return Reading(gate, measured > limit, float(measured), float(limit), float(measured - limit), None, segment)


def read_below(gate: GateT, measured: float, limit: float, segment: int | None = None) -> Reading[GateT]:
    """Passes when `measured` is strictly below `limit`."""
    return Reading(gate, measured < limit, float(measured), float(limit), float(limit - measured), None, segment)


def at_most(gate: GateT, measured: float, limit: float, segment: int | None = None) -> Reading[GateT]:
    """Passes when `measured` is not above `limit`."""
    return Reading(gate, measured <= limit, float(measured), float(limit), float(limit - measured), None, segment)


def read_waited(gate: GateT, now: int, since: int | None, wait_ms: int, segment: int | None = None) -> Reading[GateT]:
    """Return a reading that passes `wait_ms` after `since` (inclusive), or if nothing ever happened."""
    if since is None:
        return Reading(gate, True, None, float(wait_ms))
    elapsed = now - since
    passed = elapsed >= wait_ms
    end = since + wait_ms
    eligible_at = None if passed or end > MAX_INSTANT_MS else end
    return Reading(gate, passed, float(elapsed), float(wait_ms), float(elapsed - wait_ms), eligible_at, segment)


def opens_at(failing: Reading[GateT]) -> int:
    """Return when time alone opens a gate that does not pass; `MAX_INSTANT_MS` stands for never."""
    return MAX_INSTANT_MS if failing.eligible_at is None else failing.eligible_at


def due_at(failing: Iterable[Reading[GateT]], until: int = MAX_INSTANT_MS, at_least: int = 0) -> int | None:
    """The first instant, not before `at_least`, at which time alone has opened all of these gates.

    None when it does not open one of them, or only after `until`, when what the evaluation rests on is too old.
    """
    due = max((opens_at(reading) for reading in failing), default=at_least)
    due = max(due, at_least)
    return due if due <= until and due < MAX_INSTANT_MS else None


def reading_fields(reading: Reading[GateT]) -> dict[str, object]:
    """The reading by its names on the wire; what is not set is left out."""
    fields: dict[str, object] = {"gate": reading.gate.value}
    if reading.measured is not None:
        fields["measured"] = reading.measured
    if reading.limit is not None:
        fields["limit"] = reading.limit
    if reading.margin is not None:
        fields["margin"] = reading.margin
    if reading.eligible_at is not None:
        fields["eligibleAt"] = reading.eligible_at
    fields["passed"] = reading.passed
    if reading.segment is not None:
        fields["segment"] = reading.segment
    if reading.detail is not None:
        fields["detail"] = reading.detail
    return fields


def gates_to_json(gates: Sequence[Reading[GateT]]) -> str:
    """The readings as canonical JSON: the column `gates` of the tables `decisions` and `holds`."""
    return canonical_json([reading_fields(reading) for reading in gates])
