"""Parsing: turn a raw record into the form that families ingest, or reject it. Pure.

Stage: the first of a record in a bucket (parse, filter, store, count, record). `schemas.kafka.messages.parse_message`
alone defines valid messages; `schemas.codecs.plain_events` is a fast path to the same result. Families derive further
values (a layout, say) and may reject those. The reasons for dead letters: `schemas.kafka.messages.RejectReason`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.kernel.family import Family, Reading
from engine.kernel.records import RawRecord
from schemas.codecs.plain_events import PlainConsumerEvent, PlainEvent, PlainLayoutEvent, read_plain
from schemas.kafka.messages import ConsumerEvent, LayoutEvent, OutcomeEvent, Rejected, parse_message

Readers = Mapping[type, Sequence[tuple[int, str, Reading]]]
"""By message model: index, name and reader of each family that ingests it."""


@dataclass(frozen=True)
class AcceptedMessage:
    """A valid message."""

    message: Any
    """A `Message` or a `PlainEvent`."""
    taken: Sequence[tuple[int, Any]]
    """Form to ingest, by index of the family."""


def readers_of(families: Sequence[Family]) -> Readers:
    """Return the families that ingest each message model."""
    readers: dict[type, list[tuple[int, str, Reading]]] = {}
    for index, family in enumerate(families):
        for model, reading in family.readings.items():
            readers.setdefault(model, []).append((index, family.name, reading))
    for plain, model in _PLAIN.items():
        if [index for index, *_ in readers.get(plain, ())] != [index for index, *_ in readers.get(model, ())]:
            readers.pop(plain, None)
    return readers


_PLAIN: Mapping[type, type] = {PlainLayoutEvent: LayoutEvent, PlainConsumerEvent: ConsumerEvent}
"""Plain events and their models. The fast path is used where the same families ingest both."""


def parse_plain(record: RawRecord, readers: Readers) -> PlainEvent | None:
    """Parse a plain announcement that its families accept; None otherwise. Never raises on content."""
    plain = read_plain(record.source, record.key, record.value, record.size)
    return plain if type(plain) in readers else None


def read_plain_record(
    plain: PlainEvent, record: RawRecord, readers: Readers, now: int
) -> AcceptedMessage | Rejected | None:
    """Read a plain announcement for its families; None if it needs the models."""
    accepted, latest = [], max(now, record.timestamp)
    for index, _, reading in readers[type(plain)]:
        result = reading(plain, latest)
        if result is None or isinstance(result, Rejected):
            return result
        accepted.append((index, result))
    return AcceptedMessage(plain, accepted)


def parse_record(record: RawRecord, readers: Readers, now: int) -> AcceptedMessage | Rejected:
    """Parse a record, on the fast path if possible, with the result of `parse_by_models`."""
    plain = parse_plain(record, readers)
    result = None if plain is None else read_plain_record(plain, record, readers, now)
    return result or parse_by_models(record, readers, now)


def parse_by_models(record: RawRecord, readers: Readers, now: int) -> AcceptedMessage | Rejected:
    """Parse a record; `now` is the batch's time in milliseconds. Never raises on content.

    Times in a message are checked against the later of `now` and Kafka's time, since the job's clock may be behind.
    An outcome goes to the family that took the decision.
    """
    message = parse_message(record.source, record.key, record.value, record.size)
    if isinstance(message, Rejected):
        return message
    accepted, latest = [], max(now, record.timestamp)
    for index, family, reading in readers.get(type(message), ()):
        if isinstance(message, OutcomeEvent) and message.family != family:
            continue
        result = reading(message, latest)
        if isinstance(result, Rejected):
            return result
        accepted.append((index, result))
    return AcceptedMessage(message, accepted)
