"""Fast decoder of our controller's layouts and consumer counts, and the digest of a layout.

Stage: before `schemas.kafka.messages.parse_message`, which takes 90 µs for a layout of ten segments; this takes a
tenth. A message is plain if it encodes again to the same bytes: then nothing was repeated, omitted, spaced or unknown.
`parse_message` accepts every message accepted here, with equal values (property test over raw bytes). Other messages,
and all reasons for refusals, are left to it.

The layout is extracted first, and only parsed on demand (`read_layout`): most announcements repeat a known one, for
which its digest is enough.
"""

from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias

import msgspec
import xxhash
from msgspec import UNSET, Meta, Raw, UnsetType
from pydantic import TypeAdapter

from schemas.base import MAX_MILLIS, MAX_NAME_BYTES, MAX_SEGMENT_ID, TopicName
from schemas.kafka.messages import MAX_VALUE_BYTES, ConsumerEventKind, LayoutCause, SubscriptionType
from schemas.kafka.topics import CONSUMER_EVENTS, CONTROL_EVENTS
from schemas.metadata import MAX_SEGMENTS_IN_METADATA, AutoScalePolicyOverride, SegmentState

_Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Id = Annotated[int, Meta(ge=0, le=MAX_SEGMENT_ID)]
_Hash = Annotated[int, Meta(ge=0, le=0xFFFF)]
_Millis = Annotated[int, Meta(ge=0, le=MAX_MILLIS)]
_Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)]
_Topic = Annotated[str, Meta(max_length=MAX_NAME_BYTES)]
_Sender = Annotated[int, Meta(ge=0, le=2**53)]


class PlainRange(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """See `schemas.metadata.HashRange`."""

    start: _Hash
    end: _Hash


class PlainSegment(msgspec.Struct, rename="camel", gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """See `schemas.metadata.SegmentInfo`; Pulsar 5 derives the last five from the others."""

    segment_id: _Id
    hash_range: PlainRange
    state: SegmentState
    parent_ids: list[_Id]
    child_ids: list[_Id]
    created_at_epoch: _Id
    sealed_at_epoch: _Number
    created_at_ms: _Number
    sealed_at_ms: _Number
    legacy_topic_name: str | None = None
    sealed: bool | UnsetType = UNSET
    active: bool | UnsetType = UNSET
    root: bool | UnsetType = UNSET
    leaf: bool | UnsetType = UNSET
    legacy: bool | UnsetType = UNSET


class PlainLayout(msgspec.Struct, rename="camel", gc=False, forbid_unknown_fields=True):
    """See `schemas.metadata.ScalableTopicMetadata`."""

    epoch: _Id
    next_segment_id: _Id
    segments: Annotated[dict[_Id, PlainSegment], Meta(max_length=MAX_SEGMENTS_IN_METADATA)]
    properties: dict[str, str]
    auto_scale_policy: Raw | UnsetType = UNSET
    created_at_ms: _Millis | UnsetType = UNSET


class PlainLayoutEvent(
    msgspec.Struct, rename="camel", gc=False, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """See `schemas.kafka.messages.LayoutEvent`, in the order of a stamped announcement. Its layout is unparsed."""

    sender: _Sender | None = None
    v: Literal[1]
    type: Literal["layout"]
    topic: _Topic
    cause: LayoutCause
    decision_id: Annotated[str, Meta(max_length=128)] | None = None
    layout: Raw
    at: _Millis
    topic_created_at: _Millis | None = None


class PlainConsumerEvent(
    msgspec.Struct, rename="camel", gc=False, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """See `schemas.kafka.messages.ConsumerEvent`, in the order of a stamped announcement."""

    sender: _Sender | None = None
    v: Literal[1]
    topic: _Topic
    subscription: _Name
    type: SubscriptionType
    event: ConsumerEventKind
    consumer: _Name | None = None
    consumers: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    at: _Millis
    topic_created_at: _Millis | None = None


PlainEvent: TypeAlias = PlainLayoutEvent | PlainConsumerEvent

_DECODE: dict[str, Callable[[bytes], PlainEvent]] = {
    CONTROL_EVENTS.name: msgspec.json.Decoder(PlainLayoutEvent).decode,
    CONSUMER_EVENTS.name: msgspec.json.Decoder(PlainConsumerEvent).decode,
}
_BEFORE_LAYOUT, _AFTER_LAYOUT = b',"layout":', b',"at":'
_EPOCH, _ACTIVE, _AFTER_SEGMENTS = b'{"epoch":', b'"state":"ACTIVE"', b'},"properties":'
_decode_layout = msgspec.json.Decoder(PlainLayout).decode
_encode = msgspec.json.Encoder().encode
_check_name = TypeAdapter(TopicName).validate_python
_FAULTS = (msgspec.MsgspecError, ValueError, RecursionError)


def read_plain(source: str, key: bytes | None, value: bytes | None, size: int) -> PlainEvent | None:
    """Decode an announcement; None if it needs `parse_message`. Total: never raises.

    `source` is the Kafka topic, `size` the length of the whole value in bytes. The layout of an announcement is not
    checked and may be no JSON at all: `read_layout` does that, or a lookup of its digest.
    """
    decode = _DECODE.get(source)
    if decode is None or key is None or value is None or not size == len(value) <= MAX_VALUE_BYTES:
        return None
    layout = b""
    if source == CONTROL_EVENTS.name:
        if (span := _place_of_layout(value)) is None:
            return None
        layout, value = value[span], b"%b{}%b" % (value[: span.start], value[span.stop :])
    try:
        event = decode(value)
        if _encode(event) != value or event.topic.encode() != key:
            return None
        _check_name(event.topic)
    except _FAULTS:
        return None
    if isinstance(event, PlainLayoutEvent):
        # The match is the field: no other value has braces, and in a text its quotes would be escaped.
        if bytes(event.layout) != b"{}":
            return None
        event.layout = Raw(layout)
    return event


def layout_in(value: bytes) -> bytes:
    """Return the JSON of the layout in an announcement of ours."""
    span = _place_of_layout(value)
    assert span is not None, "an announcement of a layout has one"
    return value[span]


def digest_of(layout: Raw | bytes) -> str:
    """Return XXH3 of a layout's JSON, 128 bits in hex, which identifies the layout."""
    return xxhash.xxh3_128_hexdigest(layout)


def _place_of_layout(value: bytes) -> slice | None:
    start, end = value.find(_BEFORE_LAYOUT) + len(_BEFORE_LAYOUT), value.rfind(_AFTER_LAYOUT)
    return slice(start, end) if len(_BEFORE_LAYOUT) <= start < end else None


def read_layout(layout: Raw | bytes) -> PlainLayout | None:
    """Parse the layout JSON of an announcement; None if it needs the model. Total: never raises."""
    try:
        decoded = _decode_layout(layout)
        if _encode(decoded) != bytes(layout):
            return None
        policy = decoded.auto_scale_policy
        if policy is not UNSET:
            text = bytes(policy)
            if AutoScalePolicyOverride.model_validate_json(text).to_json().encode() != text:
                return None
    except _FAULTS:
        return None
    for number, segment in decoded.segments.items():
        if number != segment.segment_id or segment.hash_range.start > segment.hash_range.end:
            return None
    return decoded


def count_active(layout: Raw | bytes) -> tuple[int, int]:
    """Return epoch and number of active segments of a plain layout without parsing it."""
    text = bytes(layout)
    # It begins with its epoch, and segments precede free text, in which quotes are escaped.
    return int(text[len(_EPOCH) : text.index(b",")]), text.count(_ACTIVE, 0, text.index(_AFTER_SEGMENTS))


def write_layout(layout: PlainLayout) -> bytes:
    """Return the JSON of a layout, byte for byte as it was read."""
    return _encode(layout)
