"""Announcements of changes as records for Kafka, built from the models of `schemas.kafka.messages`."""

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from schemas.codecs.known_layouts import LayoutEntry, known_messages
from schemas.ids import SEVERAL_TOPICS
from schemas.kafka import announcing
from schemas.kafka.announcing import shorter_and_shorter
from schemas.kafka.messages import (
    MAX_VALUE_BYTES,
    ConsumerEvent,
    ConsumerEventKind,
    LayoutCause,
    LayoutEvent,
    PolicyEvent,
    Source,
    SubscriptionType,
    key_of,
)
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

log = logging.getLogger(__name__)


STAMP_BYTES = 64
"""Room for the addition by `stamped`."""


class Announcement(NamedTuple):
    """One Kafka record: the topic's logical name, the key, the value."""

    source: Source
    key: str
    value: bytes


def layout_announcement(
    topic: str, cause: LayoutCause, layout: ScalableTopicMetadata, at_ms: int, decision_id: str | None = None
) -> Announcement | None:
    """Announce the layout after `cause` at `at_ms`, without sealed segments if it is too large.

    None if not even the active ones fit (above some 5,000 segments): such a topic cannot be scaled automatically. A
    deletion is always announced: then with one segment in place of all.
    """
    for shown in shorter_and_shorter(layout, cause):
        event = LayoutEvent(
            v=1,
            type="layout",
            topic=topic,
            cause=cause,
            decision_id=decision_id,
            layout=shown,
            at=at_ms,
            topic_created_at=layout.created_at_ms,
        )
        record = Announcement("control-events", key_of(event), event.to_json().encode())
        if len(record.value) <= MAX_VALUE_BYTES - STAMP_BYTES:
            return record
    log.warning("%s: %s is not announced: its layout is above %d bytes", topic, cause, MAX_VALUE_BYTES)
    return None


def known_announcements(unchanged: Iterable[LayoutEntry], at_ms: int) -> Iterator[Announcement]:
    """Repeat layouts announced in full before, at `at_ms`, by their digests."""
    return (Announcement("control-events", SEVERAL_TOPICS, value) for value in known_messages(unchanged, at_ms))


def consumer_announcement(
    topic: str,
    subscription: str,
    type: SubscriptionType,
    event: ConsumerEventKind,
    consumers: int,
    at_ms: int,
    consumer: str | None = None,
    *,
    created_at: int | None,
) -> Announcement:
    """Announce a consumer event at `at_ms`, which leaves `consumers` sessions; `created_at`: of the topic."""
    message = ConsumerEvent(
        v=1,
        topic=topic,
        subscription=subscription,
        type=type,
        event=event,
        consumer=consumer,
        consumers=consumers,
        at=at_ms,
        topic_created_at=created_at,
    )
    return Announcement("consumer-events", key_of(message), message.to_json().encode())


def policy_announcement(namespace: str, policy: AutoScalePolicyOverride | None, at_ms: int) -> Announcement:
    """Announce the override of a namespace valid from `at_ms`; None: removed."""
    event = PolicyEvent(v=1, type="policy", scope="namespace", name=namespace, policy=policy, at=at_ms)
    return Announcement("control-events", key_of(event), event.to_json().encode())


def stamped(record: Announcement, sender: int) -> bytes:
    """Return the value of an announcement with the number of its sender (`schemas.kafka.messages.Sender`)."""
    return announcing.stamp_message(record.value, sender)
