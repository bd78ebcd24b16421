"""Names of segments in Kafka, there and back.

`segment://acme/shop/new_orders/0000-7fff-1` is the Kafka topic `segment..acme..shop..new.5forders..0000-7fff-1`: each
`/` is two dots; a byte of the UTF-8 text that is not an ASCII letter, digit or `-` is a dot and its two hexadecimal
digits. A dot is never left as it stands and `_` never comes up, so names differ also for Kafka's metrics, which take
`.` and `_` for the same. Nothing is shortened: a name that does not fit into Kafka's 249 characters is refused.

Two more dots and a number follow, `…..0000-7fff-1..1763660000000`: the life of the scalable topic, `createdAtMs` of its
layout. A topic that is deleted and made again has other Kafka topics than before, so whoever still acts for the earlier
life touches nothing of this one. Topics that an older controller made have no life, and their segments no number.

A subscription is the consumer group `<Kafka topic>#<subscription>`: groups belong to one segment, because only a whole
group can be deleted, and because a segment that is deleted takes its positions along.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from controller.segments.base import NameTooLong
from decisions.topic.names import parse_segment_topic_name, segment_topic_name
from schemas.base import MAX_MILLIS, MAX_SEGMENT_ID

MAX_KAFKA_NAME = 249
"""Most characters of a Kafka topic's name."""

_PREFIX = "segment.."
_DOMAIN = "segment://"
_MAX_DESCRIPTOR = f"0000-ffff-{MAX_SEGMENT_ID}"
_SPECIAL = re.compile(rb"[^A-Za-z0-9-]")
_ESCAPE = re.compile(rb"\.(\.|[0-9a-f]{2})")
_WITH_LIFE = re.compile(r"(.*)\.\.(0|[1-9][0-9]*)", re.ASCII | re.DOTALL)


class SegmentOfLife(NamedTuple):
    """A segment's name `segment://…`, and the life of its topic; None: made when lives were not told apart."""

    segment: str
    life: int | None


def kafka_topic(segment: str, life: int | None = None) -> str:
    """The Kafka topic of a segment; `ValueError` for what is not a segment, `NameTooLong` when it does not fit."""
    parse_segment_topic_name(segment)
    name = _PREFIX + _SPECIAL.sub(_escaped, segment.removeprefix(_DOMAIN).encode()).decode()
    if life is not None:
        name = f"{name}..{life}"
    if len(name) > MAX_KAFKA_NAME:
        raise NameTooLong(
            f"{segment} would be a Kafka topic of {len(name)} characters, at most {MAX_KAFKA_NAME} are possible; "
            "choose a shorter name for the topic (letters, digits and - count once, other characters three times)"
        )
    return name


def segment_of(kafka_name: str) -> SegmentOfLife:
    """The segment of a Kafka topic; `ValueError` when that topic is not a segment."""
    if not kafka_name.startswith(_PREFIX):
        raise ValueError(f"not the Kafka topic of a segment: {kafka_name!r}; expected {_PREFIX}tenant..namespace..…")
    # Without a life the name ends with a descriptor, which is never a bare number.
    found = _WITH_LIFE.fullmatch(kafka_name)
    plain, life = (found[1], int(found[2])) if found else (kafka_name, None)
    segment = _DOMAIN + _ESCAPE.sub(_unescaped, plain.removeprefix(_PREFIX).encode()).decode()
    if kafka_topic(segment, life) != kafka_name:
        raise ValueError(f"not the Kafka topic of a segment: {kafka_name!r}; {segment} has another")
    return SegmentOfLife(segment, life)


def check_fits(topic: str, life: int | None = None) -> None:
    """Raises `NameTooLong` unless every segment that the topic may ever have fits, in any life of it if it has one."""
    kafka_topic(segment_topic_name(topic, _MAX_DESCRIPTOR), None if life is None else MAX_MILLIS)


def group_id(segment: str, subscription: str, life: int | None = None) -> str:
    """The consumer group of a subscription of a segment."""
    return f"{kafka_topic(segment, life)}#{subscription}"


def subscription_of(group: str, segment: str, life: int | None = None) -> str | None:
    """The subscription of a consumer group, None when that group belongs to another segment or to none."""
    topic, separator, subscription = group.partition("#")
    return subscription if separator and topic == kafka_topic(segment, life) else None


def _escaped(found: re.Match[bytes]) -> bytes:
    return b".." if found[0] == b"/" else b".%02x" % ord(found[0])


def _unescaped(found: re.Match[bytes]) -> bytes:
    return b"/" if found[1] == b"." else bytes.fromhex(found[1].decode())
