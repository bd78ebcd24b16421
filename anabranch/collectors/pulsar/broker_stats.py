"""`/admin/v2/broker-stats/topics` of one broker: rates, consumers and backlogs of its segments; pure.

Stage: above `segment_stats`; `reader` fetches the answer, `loads` uses the result. The answer is namespace -> bundle ->
domain -> topic -> numbers; only `segment://` topics count here. An answer that was cut or is no JSON is refused as a
whole, for what is missing in it is not zero. A number that is no rate (negative, infinite) makes its segment unknown,
and the others count.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

import msgspec

from anabranch.collectors.announcements import LoadRates
from anabranch.collectors.pulsar.segment_stats import SubscriptionStats, slow_delivery
from schemas.base import MAX_NAME_BYTES, MAX_SEGMENT_ID
from schemas.ids import topic_name
from schemas.kafka.delivery import SegmentDelivery
from schemas.kafka.messages import SubscriptionType

_SEGMENT = "segment://"
_TYPES: dict[str, SubscriptionType] = {"Exclusive": "STREAM", "Shared": "QUEUE"}
"""What M1's clients attach to a segment with; any other type says nothing."""
_READER = "reader-"
"""Begins the subscription that a reader makes for itself; its rest is random. Checkpoint consumers are readers."""
READERS = "checkpoint-readers"
"""Stands for all of those."""


class BadStats(ValueError):
    """The answer is no broker's load; the message says why."""


class _Topic(msgspec.Struct, rename="camel", gc=False):
    msg_rate_in: float
    msg_rate_out: float
    msg_throughput_in: float
    msg_throughput_out: float
    subscriptions: dict[str, SubscriptionStats] = {}


_decode = msgspec.json.Decoder(dict[str, dict[str, dict[str, dict[str, msgspec.Raw]]]]).decode
_decode_topic = msgspec.json.Decoder(_Topic).decode


@dataclass(frozen=True)
class BrokerLoad:
    """Load of one broker's segments, the consumers attached to them, and the slow subscriptions."""

    loads: list[LoadRates]
    """By topic."""
    types: dict[tuple[str, str], SubscriptionType]
    """Of (topic, subscription), where the clients on its segments show it."""
    attached: dict[str, int]
    """By topic, a mark that differs after consumers were attached or left; only comparable within one process."""
    used: set[str]
    """Topics with consumers attached, or traffic."""
    digest: bytes
    """Equal for two answers of which the broker has computed nothing in between."""
    size: int
    """Of the answer, bytes."""
    refused: int = 0
    """Segments without usable rates."""
    names: list[str] = field(default_factory=list)
    """Some of those."""
    consumers: dict[str, dict[tuple[str, SubscriptionType], set[str]]] = field(default_factory=dict)
    """By topic, and by subscription and type: the names of the consumers attached to its segments. Those of queues,
    which do not count, are left out; readers of checkpoints are one subscription, as nothing shows which is whose."""
    segments: dict[str, list[int]] = field(default_factory=dict)
    """The segments of each topic."""
    behind: dict[str, list[SegmentDelivery]] = field(default_factory=dict)
    """By topic, the segments on which a subscription is a minute or more behind."""
    has_traffic: bool = False
    """Whether any rate is above 0."""


def read_broker_stats(body: bytes) -> BrokerLoad:
    """Return the load in an answer. Raises `BadStats` for an answer that was cut or has another form."""
    try:
        namespaces = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadStats(f"{len(body)} bytes that are not a broker's load: {str(error)[:200]}") from None
    loads: list[LoadRates] = []
    types: dict[tuple[str, str], SubscriptionType] = {}
    attached: dict[str, int] = {}
    used: set[str] = set()
    consumers: dict[str, dict[tuple[str, SubscriptionType], set[str]]] = {}
    segments: dict[str, list[int]] = {}
    behind: dict[str, list[SegmentDelivery]] = {}
    refused: list[str] = []
    for bundles in namespaces.values():
        for domains in bundles.values():
            for topics in domains.values():
                for name, numbers in topics.items():
                    if not name.startswith(_SEGMENT):
                        continue
                    parent = _parent(name)
                    stats = _numbers(numbers)
                    if parent is None or stats is None:
                        refused.append(name[:MAX_NAME_BYTES])
                        continue
                    topic, segment = parent
                    loads.append(
                        LoadRates(
                            topic,
                            segment,
                            stats.msg_rate_in,
                            stats.msg_throughput_in,
                            stats.msg_rate_out,
                            stats.msg_throughput_out,
                        )
                    )
                    if stats.msg_rate_in or stats.msg_rate_out:
                        used.add(topic)
                    mark = attached.get(topic, 0)
                    for subscription, seen in stats.subscriptions.items():
                        mark += hash((segment, subscription, *(consumer.consumer_name for consumer in seen.consumers)))
                        if seen.consumers:
                            used.add(topic)
                        if seen.type in _TYPES:
                            types[topic, subscription] = _TYPES[seen.type]
                        if seen.consumers and _TYPES.get(seen.type) != "QUEUE":
                            is_reader = subscription.startswith(_READER)
                            group: tuple[str, SubscriptionType] = (
                                (READERS, "CHECKPOINT") if is_reader else (subscription, "STREAM")
                            )
                            # A client attaches its consumer NAME to a segment as NAME-seg-ID.
                            names = consumers.setdefault(topic, {}).setdefault(group, set())
                            names.update(
                                consumer.consumer_name.removesuffix(f"-seg-{segment}") for consumer in seen.consumers
                            )
                    segments.setdefault(topic, []).append(segment)
                    attached[topic] = mark
                    if (slow := slow_delivery(segment, stats.subscriptions)) is not None:
                        behind.setdefault(topic, []).append(slow)
    loads.sort(key=lambda load: load[:2])
    digest = hashlib.blake2b(body, digest_size=16).digest()
    return BrokerLoad(
        loads,
        types,
        attached,
        used,
        digest,
        len(body),
        len(refused),
        refused[:5],
        consumers,
        segments,
        behind,
        has_traffic=any(any(load[2:]) for load in loads),
    )


def _numbers(raw: msgspec.Raw) -> _Topic | None:
    """Decode a segment's rates and subscriptions; None if a rate or a name is unusable."""
    try:
        stats = _decode_topic(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not all(0 < len(name.encode()) <= MAX_NAME_BYTES for name in stats.subscriptions):
        return None
    rates = (stats.msg_rate_in, stats.msg_rate_out, stats.msg_throughput_in, stats.msg_throughput_out)
    return stats if all(math.isfinite(rate) and rate >= 0 for rate in rates) else None


def _parent(name: str) -> tuple[str, int] | None:
    """Return topic and id of `segment://tenant/namespace/name/0000-7fff-1`; None for another form."""
    path, _, descriptor = name[len(_SEGMENT) :].rpartition("/")
    parts = path.split("/", 2)
    id = descriptor.rpartition("-")[2]
    if len(parts) != 3 or not all(parts) or not (id.isascii() and id.isdigit()) or descriptor.count("-") != 2:
        return None
    topic, number = topic_name(*parts), int(id[:20])
    if len(topic) > MAX_NAME_BYTES or any(character.isspace() for character in topic) or number > MAX_SEGMENT_ID:
        return None
    return topic, number
