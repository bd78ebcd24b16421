"""Re-announce outcomes until the job has recorded them; otherwise a decision would stay open.

Stage: between `loop` and `publisher`. Kafka may lose an outcome that it had confirmed, or expire it before the job has
read it. The job has recorded an outcome once `events` has a row of it. Until then it is announced again at growing
intervals, and only while the job records anything at all. Duplicate announcements are harmless. Each decision is
tracked by itself: several decisions on one subject end at about the same time, and the job waits for each.
"""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from deltalake.exceptions import DeltaError

from anabranch.executor.kernel.outcomes import RecordedEnd
from anabranch.executor.kernel.publisher import KafkaPublisher
from lake.tail import StoredRow, Tail
from schemas.kafka.messages import OutcomeEvent
from schemas.tables.rows import EVENTS

log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
"""Interval between looks at recorded outcomes, and shortest delay before a re-announcement."""
MAX_LOOK_SECONDS = 3600.0
"""Longest delay before a re-announcement."""


def follow_outcomes(lake: str) -> Tail:
    """Follow the outcomes that the job records, from now on."""
    return Tail(lake, EVENTS, ("body",), backlog=0, where="type = 'outcome'")


@dataclass
class _Waiting:
    """An announced outcome that the job may not have recorded yet."""

    event: OutcomeEvent
    position: int
    """Position of the table `events` at the last announcement."""
    again_at: float
    delay: float


class Announcer:
    """Announces through `publisher`, and reads recorded outcomes from `taken_in`. Used by one thread."""

    def __init__(self, publisher: KafkaPublisher, taken_in: Tail, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._publisher, self._taken_in, self._clock = publisher, taken_in, clock
        self._waiting: dict[str, _Waiting] = {}
        """By decision id."""
        self._look_at = clock() + LOOK_SECONDS
        self._is_readable = True

    @property
    def waiting(self) -> int:
        """Return the number of outcomes that the job may not have recorded."""
        return len(self._waiting)

    def open(self) -> None:
        """Start to follow the job's recorded outcomes; call before the first announcement."""
        self._read()

    def announce(self, end: RecordedEnd) -> None:
        """Announce the end of a decision; returns at once."""
        try:
            event = OutcomeEvent.model_validate(
                {
                    "v": 1,
                    "type": "outcome",
                    "decisionId": end.decision_id,
                    "family": end.family,
                    "topic": end.subject,
                    "status": end.status,
                    "error": end.error,
                    "at": int(end.at.timestamp() * 1000),
                    "absent": end.absent,
                }
            )
        except ValueError:
            log.warning(
                "the outcome of decision %r of %r cannot be announced: no such names on Kafka",
                end.decision_id[:200],
                end.subject[:200],
            )
            return
        again_at = self._clock() + LOOK_SECONDS
        self._waiting[end.decision_id] = _Waiting(event, self._taken_in.position, again_at, LOOK_SECONDS)
        self._publisher.publish(event)

    def recorded_since(self, first: date) -> set[tuple[str, str]]:
        """Return the ends that the job has recorded on a day or later, as `_end_of`. Raises Delta's errors."""
        return {_end_of(row) for row in self._taken_in.matching([("type", "=", "outcome"), ("day", ">=", first)])}

    def poll(self) -> None:
        """Announce due outcomes again; returns at once."""
        self._publisher.poll()
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        self._read()
        for waiting in self._waiting.values():
            if waiting.again_at <= now and waiting.position < self._taken_in.position:
                log.info("the job has not taken in how %s ended: announced again", waiting.event.decision_id)
                waiting.delay = min(2 * waiting.delay, MAX_LOOK_SECONDS)
                waiting.again_at, waiting.position = now + waiting.delay, self._taken_in.position
                self._publisher.publish(waiting.event)

    def close(self) -> None:
        """Deliver what was announced, for a bounded time; the next start announces the rest again."""
        self._publisher.close()

    def _read(self) -> None:
        """Drop the outcomes that the job has recorded."""
        try:
            rows = self._taken_in.read()
        except (DeltaError, OSError) as error:
            if self._is_readable:
                log.warning("what the job has taken in cannot be read, trying again: %s", error)
            self._is_readable = False
            return
        self._is_readable = True
        for decision_id, status in map(_end_of, rows):
            if decision_id in self._waiting and self._waiting[decision_id].event.status == status:
                del self._waiting[decision_id]


def _end_of(row: StoredRow) -> tuple[str, str]:
    """Return decision id and status: another lake on this Kafka may end the decision in another way."""
    body = json.loads(row["body"])
    return body["decisionId"], body["status"]
