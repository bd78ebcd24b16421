"""Parsing: from a raw record to what the families take in of it, or why it is refused. Pure, and of one record only.

Stage: the first of a record's way through a bucket (parse, filter, store, count, record). The one definition of a valid
message is `schemas.messages.parse_message`, with `schemas.plain_events` as a short way to the same; families derive
what they need (a layout, say) and may refuse that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.kernel.family import Family, Reading
from engine.kernel.records import RawRecord
from schemas.messages import ConsumerEvent, LayoutEvent, OutcomeEvent, Rejected, parse_message
from schemas.plain_events import PlainConsumerEvent, PlainEvent, PlainLayoutEvent, read_plain

Readers = Mapping[type, Sequence[tuple[int, str, Reading]]]
"""By the model of a message: the families that take it, by their place and name, and what each reads off it."""


@dataclass(frozen=True)
class Accepted:
    """A valid message."""

    message: Any
    """A `Message` or a `PlainEvent`."""
    taken: Sequence[tuple[int, Any]]
    """By the place of the family: what it takes in."""


def readers_of(families: Sequence[Family]) -> Readers:
    """Which families take which messages."""
    readers: dict[type, list[tuple[int, str, Reading]]] = {}
    for place, family in enumerate(families):
        for model, reading in family.readings.items():
            readers.setdefault(model, []).append((place, family.name, reading))
    for plain, model in _PLAIN.items():
        if [place for place, *_ in readers.get(plain, ())] != [place for place, *_ in readers.get(model, ())]:
            readers.pop(plain, None)
    return readers


_PLAIN: Mapping[type, type] = {PlainLayoutEvent: LayoutEvent, PlainConsumerEvent: ConsumerEvent}
"""What the short way reads, and the models of that: it is taken where all families that take the one take the other."""


def parse_plain(record: RawRecord, readers: Readers) -> PlainEvent | None:
    """The announcement in a record that is plain to all families that take it. Raises for no content."""
    plain = read_plain(record.source, record.key, record.value, record.size)
    return plain if type(plain) in readers else None


def read_plain_record(plain: PlainEvent, record: RawRecord, readers: Readers, now: int) -> Accepted | Rejected | None:
    """What families read off a plain announcement; None when the models have to look at it."""
    taken, latest = [], max(now, record.timestamp)
    for place, _, reading in readers[type(plain)]:
        found = reading(plain, latest)
        if found is None or isinstance(found, Rejected):
            return found
        taken.append((place, found))
    return Accepted(plain, taken)


def parse_record(record: RawRecord, readers: Readers, now: int) -> Accepted | Rejected:
    """What is in a record, the short way where that goes; as `parse_by_models` says it."""
    plain = parse_plain(record, readers)
    found = None if plain is None else read_plain_record(plain, record, readers, now)
    return found or parse_by_models(record, readers, now)


def parse_by_models(record: RawRecord, readers: Readers, now: int) -> Accepted | Rejected:
    """What is in a record; `now` is the batch's time in milliseconds. Raises for no content.

    What a message says of time is held against the later of that and Kafka's, for the job's clock may be behind. An
    outcome is for the family that took the decision.
    """
    message = parse_message(record.source, record.key, record.value, record.size)
    if isinstance(message, Rejected):
        return message
    taken, latest = [], max(now, record.timestamp)
    for place, family, reading in readers.get(type(message), ()):
        if isinstance(message, OutcomeEvent) and message.family != family:
            continue
        found = reading(message, latest)
        if isinstance(found, Rejected):
            return found
        taken.append((place, found))
    return Accepted(message, taken)
