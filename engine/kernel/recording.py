"""Record messages, as counters and rows of `events` and `dead_letters`.

Stage: the last one of a message in a bucket. A message that reaches every bucket is counted and recorded in only one of
them, its home.
"""

import hashlib
from typing import Any

from engine.kernel.family import RefusedPart
from engine.kernel.records import EVENTS, Output, RawRecord
from schemas.codecs.plain_events import PlainConsumerEvent, PlainEvent, PlainLayoutEvent, count_active
from schemas.kafka.messages import ConsumerEvent, LayoutEvent, Message, OutcomeEvent, Rejected, key_of

MAX_PIECE_BYTES = 4096
"""Bytes of a key or a value that a dead letter keeps, so that a batch of them stays below 600 MB."""


def record_event(output: Output, record: RawRecord, message: Message | PlainEvent, now: int) -> None:
    """Count and record an accepted event."""
    output.counts.messages_accepted += 1
    output.counts.events += 1
    kind = "consumer" if isinstance(message, ConsumerEvent | PlainConsumerEvent) else message.type  # type: ignore[union-attr]
    cause = getattr(message, "cause", None) or getattr(message, "event", None) or getattr(message, "status", None)
    body = record.value or b""
    output.add_row(
        EVENTS,
        (
            key_of(message),
            kind,
            cause,
            body,
            message.at,  # type: ignore[union-attr]
            record.source,
            record.partition,
            record.offset,
            record.timestamp,
            now,
            True,
            *columns_of(message),
        ),
        len(body),
    )


def columns_of(message: Message | PlainEvent) -> tuple[int | str | None, ...]:
    """Return the columns of an event's row from `life` on, taken from the message."""
    if isinstance(message, ConsumerEvent | PlainConsumerEvent):
        consumer_cells = (message.subscription, message.type, 0 if message.event == "deleted" else message.consumers)
        return (message.topic_created_at, None, None, None, *consumer_cells, message.sender)
    if isinstance(message, PlainLayoutEvent):
        epoch, active = count_active(message.layout)
        return (message.topic_created_at, epoch, active, message.decision_id, None, None, None, message.sender)
    if isinstance(message, LayoutEvent):
        layout = message.layout
        active = sum(segment.state == "ACTIVE" for segment in layout.segments.values())
        return (message.topic_created_at, layout.epoch, active, message.decision_id, None, None, None, message.sender)
    decision = message.decision_id if isinstance(message, OutcomeEvent) else None
    return (None, None, None, decision, None, None, None, None)


def record_dead_letter(output: Output, record: RawRecord, rejected: Rejected, now: int) -> None:
    """Count and record a refused message."""
    output.counts.dead_letters += 1
    output.add("dead_letters", dead_letter(record, rejected, now))


def dead_letter_of_part(record: RawRecord, refused: RefusedPart, now: int, is_whole: bool) -> dict[str, Any]:
    """Return the row of a refused part of a message; with its key and bytes if `is_whole`."""
    letter = dead_letter(record, Rejected(refused.reason, refused.detail), now)
    letter |= {"sample": refused.index, "raw": refused.raw[:MAX_PIECE_BYTES]}
    return letter if is_whole else letter | {"key": None, "raw": None}


def dead_letter(record: RawRecord, rejected: Rejected, now: int, sha256: str | None = None) -> dict[str, Any]:
    """Return the row of a refused message with the start of its bytes; `sha256` is of a truncated value."""
    value = record.value
    if value is not None and len(value) == record.size:
        sha256 = hashlib.sha256(value).hexdigest()
    return {
        "reason": rejected.reason.value,
        "detail": rejected.detail,
        "key": None if record.key is None else record.key[:MAX_PIECE_BYTES],
        "raw": None if value is None else value[:MAX_PIECE_BYTES],
        "raw_size": record.size,
        "raw_sha256": sha256,
        "kafka_topic": record.source,
        "kafka_partition": record.partition,
        "kafka_offset": record.offset,
        "kafka_timestamp": record.timestamp,
        "rejected_at": now,
    }
