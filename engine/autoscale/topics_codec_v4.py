"""Reader of the stored part `topics` up to state version 4; the next base replaces it.

Stage: under `engine.autoscale.topics_codec`. An entry is a version byte, then length-prefixed JSON records,
compressed from version 2 on: a header, then one per topic.
"""

import struct
import zlib
from typing import Any

import pydantic_core

from decisions.autoscale.clocks import Cooldowns, Failures, OpenDecision
from engine.autoscale.layouts import layout_of_json
from engine.autoscale.topics import TopicState
from engine.kernel.packed import StateError

LAST_JSON = 4
"""Last version with topics in JSON."""
_LENGTH = struct.Struct(">I")


def unpack_entry_v4(packed: bytes) -> tuple[dict[str, Any], list[TopicState]]:
    """Return the header of an entry and its topics; raises `StateError` for damaged bytes."""
    header, *records = _records(packed)
    return pydantic_core.from_json(header), [_unpack_topic(record) for record in records]


def _unpack_topic(packed: bytes) -> TopicState:
    """Read a topic; fields that its release lacked take their defaults."""
    record: dict[str, Any] = pydantic_core.from_json(packed)
    decision, layout = record.pop("flight"), record.pop("metadata")
    read = None if layout is None else layout_of_json(layout)
    active = () if read is None else [number for _, number, _ in read.active]
    stored = record.pop("merge_depths")
    merge_depths = {number: stored[str(number)] for number in active if str(number) in stored}
    return TopicState(
        known=None if read is None else read.known(merge_depths),
        consumers={name: (kind, count) for name, (kind, count) in record.pop("consumers").items()},
        cooldowns=Cooldowns(record.pop("last_split_at"), record.pop("last_merge_at")),
        merge_depths=merge_depths,
        failures=Failures(record.pop("failures"), record.pop("failed_at"), record.pop("failed_action")),
        open_decision=None if decision is None else OpenDecision(**decision),
        **record,
    )


def _records(packed: bytes) -> list[bytes]:
    version = packed[0]
    try:
        plain = zlib.decompress(packed[1:]) if version > 1 else packed[1:]
    except zlib.error as error:
        raise StateError(f"the state of a bucket is damaged: {error}") from error
    records, offset = [], 0
    while offset < len(plain):
        if offset + _LENGTH.size > len(plain):
            raise StateError(f"state is cut short at {offset} of {len(plain)} bytes")
        (length,) = _LENGTH.unpack_from(plain, offset)
        offset += _LENGTH.size
        if offset + length > len(plain):
            raise StateError(f"state is cut short: a record of {length} bytes at {offset} of {len(plain)}")
        records.append(plain[offset : offset + length])
        offset += length
    if not records:
        raise StateError("the state of a bucket holds no record, not even its header")
    return records
