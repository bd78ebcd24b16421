"""Consumers of a topic and the epoch of its layout, from `/admin/v2/scalable/…/stats`; pure.

Stage: beside `broker_stats`. A consumer that has no segment (there are more consumers than segments) is attached to
nothing, so no broker's load shows it; here it counts. Pulsar 5.0.0-M1 gives a number for each subscription and no type,
later ones a list of consumers and the type.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.collectors.announced import Consumers
from schemas.base import MAX_NAME_BYTES
from schemas.kafka.messages import SubscriptionType

MAX_COUNT = 2**31 - 1


@dataclass(frozen=True)
class TopicStats:
    """Consumer counts of one topic, as the cluster has them."""

    epoch: int
    subscriptions: dict[str, tuple[SubscriptionType | None, int]]
    """Type, if the cluster says it, and number of consumers."""

    def consumers(self, types: Mapping[str, SubscriptionType]) -> dict[str, Consumers]:
        """Of all subscriptions; `types` says what was seen of those whose type is not in the answer.

        A type that nobody has shown is taken for STREAM: consumers of a queue do not register, so it has none of them.
        """
        return {
            name: Consumers(type or types.get(name, "STREAM"), count)
            for name, (type, count) in self.subscriptions.items()
        }


def read_topic_stats(answer: Any) -> TopicStats:
    """The counts in an answer; raises `ValueError` when it holds something else."""
    if not isinstance(answer, dict):
        raise ValueError("it is no object")
    layout = answer.get("layout")
    epoch = (layout if isinstance(layout, dict) else answer).get("epoch")
    subscriptions = answer.get("subscriptions", {})
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not isinstance(subscriptions, dict):
        raise ValueError("it has no epoch, or no subscriptions")
    return TopicStats(
        epoch, {_name(name): _count_consumers(subscription) for name, subscription in subscriptions.items()}
    )


def _name(name: str) -> str:
    if not 0 < len(name) <= MAX_NAME_BYTES:
        raise ValueError("a subscription's name is empty or too long")
    return name


def _count_consumers(subscription: Any) -> tuple[SubscriptionType | None, int]:
    if not isinstance(subscription, dict):
        raise ValueError("a subscription is no object")
    listed, type = subscription.get("consumers"), subscription.get("type")
    count = len(listed) if isinstance(listed, list) else subscription.get("consumerCount")
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_COUNT:
        raise ValueError("a subscription has no number of consumers")
    types: dict[str, SubscriptionType] = {"STREAM": "STREAM", "CHECKPOINT": "CHECKPOINT", "QUEUE": "QUEUE"}
    return types.get(type) if isinstance(type, str) else None, count
