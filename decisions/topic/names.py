"""Names of segments: the descriptor `0000-7fff-1` and the topic that contains a segment's messages.

PIP-468 "Segment Topic Management via Admin API": the range in four hexadecimal digits each, then the id in decimal.
"""

import re
from typing import NamedTuple

from schemas.ids import topic_name, topic_parts

_DESCRIPTOR = re.compile(r"([0-9a-f]{4})-([0-9a-f]{4})-(0|[1-9][0-9]{0,18})")


class Descriptor(NamedTuple):
    """Contents of a segment's descriptor: the inclusive hash range and the id."""

    start: int
    end: int
    segment_id: int


def segment_descriptor(start: int, end: int, segment_id: int) -> str:
    """`0000-7fff-1`."""
    return f"{start:04x}-{end:04x}-{segment_id}"


def parse_segment_descriptor(text: str) -> Descriptor:
    """The parts of `0000-7fff-1`; `ValueError` for another form or a range that ends before it starts."""
    match = _DESCRIPTOR.fullmatch(text)
    if match is None or int(match[1], 16) > int(match[2], 16):
        raise ValueError(f"not a segment's descriptor: {text!r}; expected the form 0000-7fff-1")
    return Descriptor(int(match[1], 16), int(match[2], 16), int(match[3]))


def segment_topic_name(topic: str, descriptor: str) -> str:
    """`segment://tenant/namespace/name/0000-7fff-1` for a scalable topic; `ValueError` for another name."""
    return f"segment://{topic_parts(topic).path}/{descriptor}"


def parse_segment_topic_name(name: str) -> tuple[str, Descriptor]:
    """Split a segment topic's name into topic and descriptor. Raises `ValueError` for another form."""
    domain, separator, path = name.partition("://")
    parent, _, descriptor = path.rpartition("/")
    parts = parent.split("/", 2)
    if domain != "segment" or not separator or len(parts) != 3 or not all(parts):
        raise ValueError(f"not a segment topic's name: {name!r}; expected segment://tenant/namespace/name/0000-7fff-1")
    return topic_name(*parts), parse_segment_descriptor(descriptor)
