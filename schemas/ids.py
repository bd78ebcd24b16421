"""Names and identifiers: topic names in their parts, segment-topic names, and the digests that name decisions.

Neighbours: every part that prints or stores an identifier. Pure; equal inputs give equal ids in every process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

EVERY_TOPIC = "*"
"""The Kafka key of what concerns every topic: ticks, and policies of a namespace or the cluster."""
SEVERAL_TOPICS = "+"
"""The Kafka key of what concerns some topics, each in an entry of its own."""


class TopicParts(NamedTuple):
    """A scalable topic's name in its parts; the name itself may hold slashes."""

    tenant: str
    namespace: str
    name: str

    @property
    def full_namespace(self) -> str:
        """`tenant/namespace`, as policies are keyed."""
        return f"{self.tenant}/{self.namespace}"

    @property
    def path(self) -> str:
        """`tenant/namespace/name`, as REST paths have it."""
        return f"{self.tenant}/{self.namespace}/{self.name}"


def topic_parts(topic: str) -> TopicParts:
    """The parts of `topic://tenant/namespace/name`; `ValueError` says what is wrong with another form."""
    domain, separator, path = topic.partition("://")
    parts = path.split("/", 2)
    if domain != "topic" or not separator or len(parts) != 3 or not all(parts):
        raise ValueError(f"not a scalable topic's name: {topic!r}; expected topic://tenant/namespace/name")
    return TopicParts(*parts)


def topic_name(tenant: str, namespace: str, name: str) -> str:
    """`topic://tenant/namespace/name`."""
    return f"topic://{tenant}/{namespace}/{name}"


def canonical_json(value: Any) -> str:
    """One text for one value: sorted keys, no spaces, no NaN. The base of every digest."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def digest(value: Any, *, size: int = 16) -> str:
    """BLAKE2b over the canonical JSON of `value`, `size` bytes, in hex."""
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=size).hexdigest()


def decision_id(
    subject: str, layout_epoch: int, action: str, segments: list[int], attempt: int, created: Sequence[int] = ()
) -> str:  # fmt: skip
    """The id of a decision: the same decision has the same id in every replay (design "Tables").

    `attempt` counts from 1 how often the same action was decided on the same layout epoch: it grows only after an
    earlier attempt ended without effect (failed, rejected or superseded). `created` is when each of the segments was
    made, milliseconds: it tells a topic from one of the same name that was deleted. Empty: the id of older releases.
    """
    return digest([subject, layout_epoch, action, segments, attempt, *([list(created)] if created else [])])
