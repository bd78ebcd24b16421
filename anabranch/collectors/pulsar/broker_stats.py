"""`/admin/v2/broker-stats/topics` of one broker: rates, consumers and backlogs of its segments; pure.

Stage: above `segment_stats`; `reader` fetches the answer, `loads` uses the result. The answer is namespace -> bundle ->
domain -> topic -> numbers; only `segment://` topics count here. A truncated answer is refused as a whole, since missing
loads are not zero. A number that is no rate (negative, infinite) makes only its segment unknown.
"""

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
"""Types with which clients of M1 attach to a segment; others mean nothing."""
_READER = "reader-"
"""Prefix of a reader's own subscription, before random characters. Checkpoint consumers are readers."""
READERS = "checkpoint-readers"
"""Name that stands for all of them."""


class BadStats(ValueError):
    """The answer is not the load of a broker; the message says why."""


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
    """Rates of the segments, by topic."""
    types: dict[tuple[str, str], SubscriptionType]
    """Type by (topic, subscription), if clients on its segments show it."""
    attached: dict[str, int]
    """Mark of each topic that changes when consumers attach or leave; comparable within one process only."""
    used: set[str]
    """Topics with attached consumers or traffic."""
    digest: bytes
    """Digest of the answer; the same until the broker computes again."""
    size: int
    """Size of the answer, bytes."""
    refused: int = 0
    """Number of segments without usable rates."""
    names: list[str] = field(default_factory=list)
    """Some of their names."""
    consumers: dict[str, dict[tuple[str, SubscriptionType], set[str]]] = field(default_factory=dict)
    """Names of the consumers attached to segments, by topic, then by subscription and type. Those of queues do not
    count and are omitted; all checkpoint readers are one subscription, because nothing tells them apart."""
    segments: dict[str, list[int]] = field(default_factory=dict)
    """Segments of each topic."""
    behind: dict[str, list[SegmentDelivery]] = field(default_factory=dict)
    """Segments on which a subscription is at least a minute behind, by topic."""
    has_traffic: bool = False
    """True if any rate is above 0."""


def read_broker_stats(body: bytes) -> BrokerLoad:
    """Return the load in an answer. Raises `BadStats` for a truncated or malformed one."""
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
                    rates_in = stats.msg_rate_in, stats.msg_throughput_in
                    rates_out = stats.msg_rate_out, stats.msg_throughput_out
                    loads.append(LoadRates(topic, segment, *rates_in, *rates_out))
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
