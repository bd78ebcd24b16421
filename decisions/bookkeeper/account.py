"""Account of one evaluation: every gate that the command or an object came to, in order.

Stage: filled by every module of the family that applies a gate; `gates` lists them.
"""

from decisions.bookkeeper.gates import SENTENCES, BookieGate
from schemas.bookie_answers import BookieReading

BAD, UNKNOWN, CONFLICT = 400, 404, 409


class BookieAccount:
    """List of all that an evaluation looked at."""

    def __init__(self) -> None:
        self.readings: list[BookieReading] = []
        self.binding: BookieReading | None = None
        """The gate that holds the whole command."""
        self.code = 200

    def require(
        self,
        gate: BookieGate,
        passed: bool,
        detail: str | None = None,
        code: int = CONFLICT,
        *,
        measured: float | None = None,
        limit: float | None = None,
        margin: float | None = None,
        eligible_at: int | None = None,
    ) -> bool:
        """A gate of the whole command: the first that does not pass binds."""
        reading = BookieReading(
            gate=gate.value,
            passed=passed,
            measured=measured,
            limit=limit,
            margin=margin,
            eligible_at=eligible_at,
            detail=None if passed else detail or SENTENCES[gate],
        )
        self.readings.append(reading)
        if not passed and self.binding is None:
            self.binding, self.code = reading, code
        return passed

    def note(self, gate: BookieGate, passed: bool, subject: str, detail: str | None = None) -> bool:
        """A gate of one object."""
        self.readings.append(
            BookieReading(
                gate=gate.value, passed=passed, object=subject, detail=None if passed else detail or SENTENCES[gate]
            )
        )
        return passed
