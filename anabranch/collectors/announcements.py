"""Records that a collector writes to Kafka, built from the models of `schemas.kafka.messages`; pure.

Stage: under `announced`. Announcements begin with the number of their sender, as our controller writes them: the job
has a short way for those bytes (`schemas.codecs.plain_events`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from schemas.codecs.known_layouts import LayoutEntry, known_messages
from schemas.ids import SEVERAL_TOPICS
from schemas.kafka.announcing import shorter_and_shorter, stamp_message
from schemas.kafka.delivery import SegmentDelivery
from schemas.kafka.messages import (
    MAX_VALUE_BYTES,
    ConsumerEvent,
    ConsumerEventKind,
    DeliveryEvent,
    LayoutCause,
    LayoutEvent,
    PolicyEvent,
    SegmentStatsColumns,
    Source,
    SubscriptionType,
    key_of,
)
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

MAX_SAMPLES = 4_000
"""Of one record: some 300 KiB."""
MAX_TOPIC_BYTES = 400_000
"""Of the names of topics in one record."""


class KafkaRecord(NamedTuple):
    """One record for Kafka."""

    source: Source
    key: str
    value: bytes
    is_end: bool = False
    """Whether it says that a topic or a subscription is gone."""


class LoadRates(NamedTuple):
    """The four rates of one segment, per second."""

    topic: str
    segment: int
    msg_rate_in: float
    bytes_rate_in: float
    msg_rate_out: float
    bytes_rate_out: float


def layout_record(
    topic: str, cause: LayoutCause, layout: ScalableTopicMetadata, at_ms: int, sender: int
) -> KafkaRecord | None:
    """Return the record of the layout after `cause`, as seen at `at_ms`.

    A layout above the record size goes without its sealed segments. Returns None when not even the active ones fit:
    some 5,000 of them. The deletion of a topic is always announced, if need be with one segment in place of all.
    """
    for shown in shorter_and_shorter(layout, cause):
        event = LayoutEvent(
            v=1, type="layout", topic=topic, cause=cause, layout=shown, at=at_ms, topic_created_at=layout.created_at_ms
        )
        record = KafkaRecord(
            "control-events", key_of(event), stamp_message(event.to_json().encode(), sender), cause == "deleted"
        )
        if len(record.value) <= MAX_VALUE_BYTES:
            return record
    return None


def known_records(unchanged: Iterable[LayoutEntry], at_ms: int, sender: int) -> Iterator[KafkaRecord]:
    """Layouts that were said in full before, once more at `at_ms`, by their digests."""
    return (
        KafkaRecord("control-events", SEVERAL_TOPICS, stamp_message(value, sender))
        for value in known_messages(unchanged, at_ms)
    )


def consumers_record(
    topic: str,
    subscription: str,
    type: SubscriptionType,
    event: ConsumerEventKind,
    consumers: int,
    at_ms: int,
    sender: int,
) -> KafkaRecord:
    """`consumers` of a subscription, as seen at `at_ms`."""
    message = ConsumerEvent(
        v=1, topic=topic, subscription=subscription, type=type, event=event, consumers=consumers, at=at_ms
    )
    return KafkaRecord(
        "consumer-events", key_of(message), stamp_message(message.to_json().encode(), sender), event == "deleted"
    )


def policy_record(namespace: str, policy: AutoScalePolicyOverride | None, at_ms: int, sender: int) -> KafkaRecord:
    """The override of a namespace as seen at `at_ms`; None: there is none."""
    event = PolicyEvent(v=1, type="policy", scope="namespace", name=namespace, policy=policy, at=at_ms)
    return KafkaRecord("control-events", key_of(event), stamp_message(event.to_json().encode(), sender))


def delivery_record(topic: str, reported: int, slow: list[SegmentDelivery], at_ms: int, sender: int) -> KafkaRecord:
    """Report that of so many segments these are slow, as seen at `at_ms`."""
    event = DeliveryEvent(v=1, type="delivery", topic=topic, at=at_ms, reported=reported, segments=slow)
    return KafkaRecord("control-events", key_of(event), stamp_message(event.to_json().encode(), sender))


def load_records(reporter: str, sampled_at: int, loads: Sequence[LoadRates]) -> Iterator[KafkaRecord]:
    """Yield a reporter's samples in columns, in records of bounded size; a topic's samples stay together."""
    start = 0
    while start < len(loads):
        end, names, last = start, 0, ""
        while end < len(loads) and end - start < MAX_SAMPLES:
            topic = loads[end].topic
            if topic != last:
                names += len(topic.encode())
                if names > MAX_TOPIC_BYTES:
                    break
                last = topic
            end += 1
        yield _columns_record(reporter, sampled_at, loads[start:end])
        start = end


def _columns_record(reporter: str, sampled_at: int, loads: Sequence[LoadRates]) -> KafkaRecord:
    topics: list[str] = []
    counts: list[int] = []
    for load in loads:
        if topics and topics[-1] == load.topic:
            counts[-1] += 1
        else:
            topics.append(load.topic)
            counts.append(1)
    message = SegmentStatsColumns.model_construct(
        v=2,
        reporter=reporter,
        sampled_at=sampled_at,
        topics=topics,
        counts=counts,
        ids=[load.segment for load in loads],
        msg_rate_in=[round(load.msg_rate_in, 3) for load in loads],
        bytes_rate_in=[round(load.bytes_rate_in, 3) for load in loads],
        msg_rate_out=[round(load.msg_rate_out, 3) for load in loads],
        bytes_rate_out=[round(load.bytes_rate_out, 3) for load in loads],
    )
    return KafkaRecord("segment-stats", reporter, message.to_json().encode())
