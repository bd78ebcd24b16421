"""Names of segments in Kafka, in both directions.

`segment://acme/shop/new_orders/0000-7fff-1` is the Kafka topic `segment..acme..shop..new.5forders..0000-7fff-1`: each
`/` becomes two dots; a byte of the UTF-8 text that is not an ASCII letter, digit or `-` becomes a dot and two
hexadecimal digits. A literal dot or `_` never appears, so names also differ in Kafka's metrics, which treat `.` and `_`
as equal. Nothing is shortened: a name that exceeds Kafka's 249 characters is refused.

Two more dots and a number follow, `…..0000-7fff-1..1763660000000`: the incarnation of the scalable topic, `createdAtMs`
of its layout. A topic that is deleted and created again has different Kafka topics, so a process that still acts for
the earlier incarnation does not touch this one. Topics made by an older controller have no incarnation number.

A subscription is the consumer group `<Kafka topic>#<subscription>`: groups belong to one segment, because only a whole
group can be deleted, and because the positions of a deleted segment must go with it.
"""

import re
from typing import NamedTuple

from anabranch.controller.segments.base import NameTooLong
from decisions.topic.names import parse_segment_topic_name, segment_topic_name
from schemas.base import MAX_MILLIS, MAX_SEGMENT_ID

MAX_KAFKA_NAME = 249
"""Maximum length of a Kafka topic's name, in characters."""

SEGMENT_PREFIX = "segment.."
"""Start of the name of every Kafka topic of a segment."""
_DOMAIN = "segment://"
_MAX_DESCRIPTOR = f"0000-ffff-{MAX_SEGMENT_ID}"
_SPECIAL = re.compile(rb"[^A-Za-z0-9-]")
_ADOPTED = re.compile(r"kafka://([A-Za-z0-9._-]{1,249})/(0|[1-9][0-9]{0,5})", re.ASCII)
_ESCAPE = re.compile(rb"\.(\.|[0-9a-f]{2})")
_WITH_LIFE = re.compile(r"(.*)\.\.(0|[1-9][0-9]*)", re.ASCII | re.DOTALL)


class KafkaPartition(NamedTuple):
    """A partition of a Kafka topic."""

    topic: str
    partition: int


class SegmentOfLife(NamedTuple):
    """A segment's name `segment://…`, and its topic's incarnation; None: made before these were recorded."""

    segment: str
    life: int | None


def kafka_topic(segment: str, life: int | None = None) -> str:
    """Return a segment's Kafka topic. Raises `ValueError` for other names, `NameTooLong` beyond the limit."""
    parse_segment_topic_name(segment)
    name = SEGMENT_PREFIX + _SPECIAL.sub(_escaped, segment.removeprefix(_DOMAIN).encode()).decode()
    if life is not None:
        name = f"{name}..{life}"
    if len(name) > MAX_KAFKA_NAME:
        raise NameTooLong(
            f"{segment} would be a Kafka topic of {len(name)} characters, at most {MAX_KAFKA_NAME} are possible; "
            "choose a shorter name for the topic (letters, digits and - count once, other characters three times)"
        )
    return name


def segment_of(kafka_name: str) -> SegmentOfLife:
    """Return the segment of a Kafka topic. Raises `ValueError` when that topic is not a segment."""
    if not kafka_name.startswith(SEGMENT_PREFIX):
        raise ValueError(
            f"not the Kafka topic of a segment: {kafka_name!r}; expected {SEGMENT_PREFIX}tenant..namespace..…"
        )
    # Without an incarnation the name ends with a descriptor, which is never a bare number.
    match = _WITH_LIFE.fullmatch(kafka_name)
    plain, life = (match[1], int(match[2])) if match else (kafka_name, None)
    segment = _DOMAIN + _ESCAPE.sub(_unescaped, plain.removeprefix(SEGMENT_PREFIX).encode()).decode()
    if kafka_topic(segment, life) != kafka_name:
        raise ValueError(f"not the Kafka topic of a segment: {kafka_name!r}; {segment} has another")
    return SegmentOfLife(segment, life)


def adopted_name(partition: KafkaPartition) -> str:
    """Return the `legacyTopicName` of an adopted topic's partition: `kafka://orders/3`."""
    return f"kafka://{partition.topic}/{partition.partition}"


def adopted_partition(legacy_topic_name: str | None) -> KafkaPartition | None:
    """Return the partition of an adopted segment; None: the segment has a Kafka topic of its own."""
    match = _ADOPTED.fullmatch(legacy_topic_name or "")
    return KafkaPartition(match[1], int(match[2])) if match else None


def check_fits(topic: str, life: int | None = None) -> None:
    """Raise `NameTooLong` unless every segment that the topic may ever have fits, in any incarnation."""
    kafka_topic(segment_topic_name(topic, _MAX_DESCRIPTOR), None if life is None else MAX_MILLIS)


def group_id(segment: str, subscription: str, life: int | None = None) -> str:
    """Return the consumer group of a subscription of a segment."""
    return f"{kafka_topic(segment, life)}#{subscription}"


def subscription_of(group: str, segment: str, life: int | None = None) -> str | None:
    """Return the subscription of a consumer group, None if that group is not of this segment."""
    topic, separator, subscription = group.partition("#")
    return subscription if separator and topic == kafka_topic(segment, life) else None


def _escaped(match: re.Match[bytes]) -> bytes:
    return b".." if match[0] == b"/" else b".%02x" % ord(match[0])


def _unescaped(match: re.Match[bytes]) -> bytes:
    return b"/" if match[1] == b"." else bytes.fromhex(match[1].decode())
