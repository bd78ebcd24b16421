"""Names of topics, of their segments in Kafka, and of the consumer groups of subscriptions.

The segment with hashes `0000..7fff` and id 1 of `topic://acme/shop/new_orders` is the Kafka topic
`segment..acme..shop..new.5forders..0000-7fff-1..CREATED`, CREATED being `createdAtMs` of the topic's layout: two dots
separate parts; a byte that is not an ASCII letter, digit or `-` is a dot and two hexadecimal digits.
"""

import re
from urllib.parse import quote

from anabranch_client.errors import ClientSettingsError

PARTITION = 0
"""The only partition of a segment's Kafka topic."""
_SPECIAL = re.compile(rb"[^A-Za-z0-9-]")
_ADOPTED = re.compile(r"kafka://([^/]+)/([0-9]+)", re.ASCII)


def topic_parts(topic: str) -> tuple[str, str, str]:
    """Split `topic://tenant/namespace/name`, with or without its prefix, into its three parts."""
    parts = topic.removeprefix("topic://").split("/", 2)
    if len(parts) != 3 or not all(parts):
        raise ClientSettingsError(f"not a scalable topic: {topic!r}; expected topic://tenant/namespace/name")
    return parts[0], parts[1], parts[2]


def full_name(topic: str) -> str:
    """Return `topic://tenant/namespace/name`."""
    return "topic://" + "/".join(topic_parts(topic))


def admin_path(topic: str) -> str:
    """Return the path of a topic at the controller."""
    return "/admin/v2/scalable/" + "/".join(quote(part, safe="") for part in topic_parts(topic))


def segment_kafka_topic(topic: str, start: int, end: int, segment_id: int, created_at_ms: int | None) -> str:
    """Return the Kafka topic of a segment; `created_at_ms` is that of the layout."""
    escaped = (_SPECIAL.sub(_escape, part.encode()).decode() for part in topic_parts(topic))
    name = "..".join(("segment", *escaped, f"{start:04x}-{end:04x}-{segment_id}"))
    return name if created_at_ms is None else f"{name}..{created_at_ms}"


def kafka_partition(segment_name: str, underlying: str | None) -> tuple[str, int]:
    """Return Kafka topic and partition of a segment.

    `underlying`: `kafka://orders/3` for partition 3 of an adopted topic; anything else is the segment's own topic.
    """
    adopted = _ADOPTED.fullmatch(underlying or "")
    return (adopted[1], int(adopted[2])) if adopted else (segment_name, PARTITION)


def group_id(segment_name: str, subscription: str) -> str:
    """Return the consumer group that holds a subscription's position on a segment."""
    return f"{segment_name}#{subscription}"


def _escape(match: re.Match[bytes]) -> bytes:
    return b".." if match[0] == b"/" else b".%02x" % ord(match[0])
