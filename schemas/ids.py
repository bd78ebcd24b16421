"""Names and identifiers: parts of topic names, and the digests that identify decisions.

Used wherever an identifier is printed or stored. Pure; equal inputs give equal ids in every process.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

EVERY_TOPIC = "*"
"""Kafka key of messages about every topic: ticks, and policies of a namespace or the cluster."""
SEVERAL_TOPICS = "+"
"""Kafka key of messages with entries for several topics."""


class TopicParts(NamedTuple):
    """Parts of a scalable topic's name; the name itself may contain slashes."""

    tenant: str
    namespace: str
    name: str

    @property
    def full_namespace(self) -> str:
        """`tenant/namespace`, the key of policies."""
        return f"{self.tenant}/{self.namespace}"

    @property
    def path(self) -> str:
        """`tenant/namespace/name`, as in REST paths."""
        return f"{self.tenant}/{self.namespace}/{self.name}"


def topic_parts(topic: str) -> TopicParts:
    """Split `topic://tenant/namespace/name`; `ValueError` explains any other form."""
    domain, separator, path = topic.partition("://")
    parts = path.split("/", 2)
    if domain != "topic" or not separator or len(parts) != 3 or not all(parts):
        raise ValueError(f"not a scalable topic's name: {topic!r}; expected topic://tenant/namespace/name")
    return TopicParts(*parts)


def topic_name(tenant: str, namespace: str, name: str) -> str:
    """Return `topic://tenant/namespace/name`."""
    return f"topic://{tenant}/{namespace}/{name}"


def canonical_json(value: Any) -> str:
    """Return the unique text of a value: sorted keys, no spaces, no NaN. The base of every digest."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def digest(value: Any, *, size: int = 16) -> str:
    """Return BLAKE2b over the canonical JSON of `value`, `size` bytes, in hex."""
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=size).hexdigest()


def decision_id(
    subject: str, layout_epoch: int, action: str, segments: list[int], attempt: int, created: Sequence[int] = ()
) -> str:
    """Return the id of a decision, which is the same in every replay (design "Tables").

    `attempt` counts from 1 the decisions for the same action on the same layout epoch: it increases only after an
    attempt without effect (failed, rejected or superseded). `created` is the creation time of each segment,
    milliseconds, which distinguishes a topic from a deleted one of the same name. Empty: the id of older releases.
    """
    return digest([subject, layout_epoch, action, segments, attempt, *([list(created)] if created else [])])
