"""Encoding of repeated layouts by digest (`schemas.kafka.messages.LayoutsKnown`) in bounded records.

Stage: under every producer that periodically repeats its announcements. `schemas.codecs.known_entries` handles them in
the job, before the shuffle.
"""

from __future__ import annotations

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


class Known(NamedTuple):
    """A layout announced before."""

    topic: str
    epoch: int
    digest: str
    """Digest of the layout's JSON (`schemas.codecs.plain_events.digest_of`)."""


def known_messages(known: Iterable[Known], at: int) -> Iterator[bytes]:
    """Yield these layouts as messages of bounded size, dated `at` (ms), without a sender."""
    part: list[Known] = []
    size = 0
    for one in known:
        size += len(one.topic.encode())
        if part and (len(part) == MAX_ENTRIES or size > MAX_TOPIC_BYTES):
            yield known_json(part, at)
            part, size = [], len(one.topic.encode())
        part.append(one)
    if part:
        yield known_json(part, at)


def known_json(known: Sequence[Known], at: int, sender: int | None = None) -> bytes:
    """Return one message with these layouts."""
    columns = ([one.topic for one in known], [one.epoch for one in known], [one.digest for one in known])
    return columns_json(*columns, at, sender)


def columns_json(topics: list[str], epochs: list[int], digests: list[str], at: int, sender: int | None) -> bytes:
    """Return the same from columns."""
    return _encode(_Written(2, "layouts-known", at, topics, epochs, digests, sender))


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
