"""Layouts that are repeated by their digests (`schemas.messages.LayoutsKnown`): written in records of bounded size.

Stage: under every producer that says now and then what it has said before. What the job makes of it before the shuffle
is `schemas.known_entries`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

FULL_EVERY = 12
"""Whoever repeats its layouts by their digests announces each of them in full in every twelfth round: so soon a
listener that knows another one is set right. With rounds of five minutes that is an hour."""
MAX_ENTRIES = 4_000
"""Of one record: some 500 kB with names of a usual length."""
MAX_TOPIC_BYTES = 400_000
"""Of the names in one record."""


class Known(NamedTuple):
    """A layout that was announced before."""

    topic: str
    epoch: int
    digest: str
    """As `schemas.plain_events.digest_of` says it of the layout's JSON."""


def known_messages(known: Iterable[Known], at: int) -> Iterator[bytes]:
    """These layouts as messages of bounded size, said at `at` (ms), without a sender."""
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
    """One message of these layouts."""
    columns = ([one.topic for one in known], [one.epoch for one in known], [one.digest for one in known])
    return columns_json(*columns, at, sender)


def columns_json(topics: list[str], epochs: list[int], digests: list[str], at: int, sender: int | None) -> bytes:
    """The same of columns."""
    return _encode(_Written(2, "layouts-known", at, topics, epochs, digests, sender))


class _Written(msgspec.Struct, omit_defaults=True):
    """As `LayoutsKnown` is written; pydantic's models take ten times as long."""

    v: int
    type: str
    at: int
    topics: list[str]
    epochs: list[int]
    digests: list[str]
    sender: int | None = None


_encode = msgspec.json.Encoder().encode
