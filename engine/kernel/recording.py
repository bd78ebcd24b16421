"""Counting and recording: an accepted message becomes a row of `events`, a refused one a row of `dead_letters`.

Stage: the last two of a record's way through a bucket. What reaches every bucket is counted and recorded in one of
them, its home.
"""

from __future__ import annotations

from engine.kernel.records import Output, RawRecord
from schemas.messages import ConsumerEvent, Message, Rejected, key_of

_MAX_KEY_BYTES = 4096
_MAX_RAW_BYTES = 65_536


def record_event(output: Output, record: RawRecord, message: Message, now: int) -> None:
    """Counts and records an accepted message that is an event."""
    output.counts.messages_accepted += 1
    output.counts.events += 1
    kind = "consumer" if isinstance(message, ConsumerEvent) else message.type  # type: ignore[union-attr]
    cause = getattr(message, "cause", None) or getattr(message, "event", None) or getattr(message, "status", None)
    output.events.append({
        "subject": key_of(message),
        "type": kind,
        "cause": cause,
        "body": (record.value or b"").decode(),
        "at": message.at,  # type: ignore[union-attr]
        "kafka_topic": record.source,
        "kafka_partition": record.partition,
        "kafka_offset": record.offset,
        "kafka_timestamp": record.timestamp,
        "accepted_at": now,
    })  # fmt: skip


def record_dead_letter(output: Output, record: RawRecord, rejected: Rejected, now: int) -> None:
    """Counts and records a message that was refused."""
    output.counts.dead_letters += 1
    output.dead_letters.append({
        "reason": rejected.reason.value,
        "detail": rejected.detail,
        "key": None if record.key is None else record.key[:_MAX_KEY_BYTES],
        "raw": None if record.value is None else record.value[:_MAX_RAW_BYTES],
        "raw_size": record.size,
        "kafka_topic": record.source,
        "kafka_partition": record.partition,
        "kafka_offset": record.offset,
        "kafka_timestamp": record.timestamp,
        "rejected_at": now,
    })  # fmt: skip
