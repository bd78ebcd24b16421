"""Encoding of repeated layouts by digest (`schemas.kafka.messages.LayoutsKnown`) in bounded records.

Stage: under every producer that periodically repeats its announcements. `schemas.codecs.known_entries` handles them in
the job, before the shuffle. The digest itself: `schemas.codecs.plain_events.digest_of`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

FULL_EVERY = 12
"""Number of rounds after which a producer announces each layout in full instead of by digest.

A listener with another layout is corrected then. With rounds of five minutes that is an hour.
"""
MAX_ENTRIES = 4_000
"""Limit per record: some 500 kB with names of usual length."""
MAX_TOPIC_BYTES = 400_000
"""Limit on the bytes of names in one record."""


class LayoutEntry(NamedTuple):
    """A layout announced before."""

    topic: str
    epoch: int
    digest: str
    """Digest of the layout's JSON (`schemas.codecs.plain_events.digest_of`)."""


def known_messages(layouts: Iterable[LayoutEntry], instant: int) -> Iterator[bytes]:
    """Yield these layouts as messages of bounded size, dated `instant` (ms), without a sender."""
    part: list[LayoutEntry] = []
    size = 0
    for layout in layouts:
        size += len(layout.topic.encode())
        if part and (len(part) == MAX_ENTRIES or size > MAX_TOPIC_BYTES):
            yield known_json(part, instant)
            part, size = [], len(layout.topic.encode())
        part.append(layout)
    if part:
        yield known_json(part, instant)


def known_json(layouts: Sequence[LayoutEntry], instant: int, sender: int | None = None) -> bytes:
    """Return one message with these layouts."""
    columns = (
        [layout.topic for layout in layouts],
        [layout.epoch for layout in layouts],
        [layout.digest for layout in layouts],
    )
    return columns_json(*columns, instant, sender)


def columns_json(topics: list[str], epochs: list[int], digests: list[str], instant: int, sender: int | None) -> bytes:
    """Return the same from columns."""
    return _encode(_Written(2, "layouts-known", instant, topics, epochs, digests, sender))


class _Written(msgspec.Struct, omit_defaults=True):
    """`LayoutsKnown` in the form for encoding; pydantic's models take ten times as long."""

    v: int
    type: str
    at: int
    topics: list[str]
    epochs: list[int]
    digests: list[str]
    sender: int | None = None


_encode = msgspec.json.Encoder().encode
