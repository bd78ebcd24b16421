"""Fast decoder of segment samples (form 1), for messages in which everything is plain.

Stage: first of the job, where `schemas.kafka.messages` would be the largest cost (24 µs for ten segments, this is 5).
`parse_message` accepts every message accepted here, with equal values, whatever was decoded before (property test
over raw bytes). Other messages, and all reasons for refusals, are left to it. Plain means without unknown fields.
`schemas.codecs.bulk_arrays` handles messages formatted as by our models once their topic was seen here. A decoder does
not validate skipped fields: invalid UTF-8, or a number of any length, would pass there.
"""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from schemas.base import MAX_MILLIS, MAX_NAME_BYTES, MAX_SEGMENT_ID
from schemas.kafka.messages import MAX_SEGMENTS_PER_SAMPLE, MAX_VALUE_BYTES, SegmentStats, parse_message

_Rate = Annotated[float, Meta(ge=0)]
_MAX_NAMES = 1_000_000


class BulkSegment(msgspec.Struct, rename="camel", gc=False, forbid_unknown_fields=True):
    """Four rates of a segment, per second; see `schemas.kafka.messages.SegmentSample`."""

    id: Annotated[int, Meta(ge=0, le=MAX_SEGMENT_ID)]
    msg_rate_in: _Rate
    bytes_rate_in: _Rate
    msg_rate_out: _Rate
    bytes_rate_out: _Rate


class BulkStats(msgspec.Struct, rename="camel", gc=False, forbid_unknown_fields=True):
    """A reporter's sample of a topic; see `schemas.kafka.messages.SegmentStats`."""

    v: Literal[1]
    topic: str
    reporter: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)]
    sampled_at: Annotated[int, Meta(ge=0, le=MAX_MILLIS)]
    segments: Annotated[list[BulkSegment], Meta(max_length=MAX_SEGMENTS_PER_SAMPLE)]


_decode = msgspec.json.Decoder(BulkStats).decode
_known: dict[bytes, str] = {}
"""Keys of valid topics to their names: most messages concern a topic seen before."""
_odd: set[bytes] = set()
"""Those of them that JSON must escape."""
_HAS_ODD_BYTES = re.compile(rb'["\\\x00-\x1f]').search


def decode_stats(key: bytes | None, value: bytes | None, size: int) -> BulkStats | None:
    """Decode a sample; None if it needs `parse_message`. Total: never raises.

    `size` is the length of the whole value in bytes, as in `parse_message`.
    """
    if key is None or value is None or max(size, len(value)) > MAX_VALUE_BYTES:
        return None
    try:
        stats = _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if _known.get(key) != stats.topic:
        return _first_seen(key, value, size, stats)
    segments, before = stats.segments, -1
    for segment in segments:
        if segment.id <= before:
            return stats if len({entry.id for entry in segments}) == len(segments) else None
        before = segment.id
    return stats


def _first_seen(key: bytes, value: bytes, size: int, stats: BulkStats) -> BulkStats | None:
    if not isinstance(parse_message("segment-stats", key, value, size), SegmentStats):
        return None
    if len(_known) >= _MAX_NAMES:
        _known.clear()
        _odd.clear()
    _known[key] = stats.topic
    if _HAS_ODD_BYTES(key):
        _odd.add(key)
    return stats


def is_known(key: bytes | None) -> bool:
    """Return whether the key is of a valid topic seen before that needs no escapes in JSON."""
    return key in _known and key not in _odd


def decode_head(head: bytes) -> tuple[str, int] | None:
    """Decode reporter and time from the bytes before the segments' bracket; None if invalid."""
    try:
        stats = _decode(b'{"v":1,"topic":"","reporter":"%b[]}' % head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return stats.reporter, stats.sampled_at
