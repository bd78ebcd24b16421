"""Kafka records as a bucket sees them, built from the message models."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from decisions.topic.layout import SegmentLayout
from engine.kernel.records import RawRecord
from schemas.ids import EVERY_TOPIC

TOPIC = "topic://acme/shop/orders"
_offsets = count()


def record(source: str, key: str | None, body: Any, *, home: bool = True, at: int = 0) -> RawRecord:
    """One record; `body` is bytes, None or a JSON value, written as producers of ours do. Offsets grow in the order of
    creation."""
    value = body if body is None or isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    size = -1 if value is None else len(value)
    return RawRecord(source, None if key is None else key.encode(), value, size, 0, next(_offsets), at, home)


def stats(rates: dict[int, float], at: int, topic: str = TOPIC, reporter: str = "broker-1") -> RawRecord:
    """A sample: segment id to msgRateIn; the other three rates are 0."""
    rest = {"bytesRateIn": 0.0, "msgRateOut": 0.0, "bytesRateOut": 0.0}
    segments = [{"id": i, "msgRateIn": rate, **rest} for i, rate in rates.items()]
    body = {"v": 1, "topic": topic, "reporter": reporter, "sampledAt": at, "segments": segments}
    return record("segment-stats", topic, body)


def columns(rates: dict[str, dict[int, float]], at: int, reporter: str = "broker-1") -> RawRecord:
    """Samples in columns: topic to segment id to msgRateIn; the other three rates are 0."""
    of_each = [rate for of_topic in rates.values() for rate in of_topic.values()]
    body = {
        "v": 2,
        "reporter": reporter,
        "sampledAt": at,
        "topics": list(rates),
        "counts": [len(of_topic) for of_topic in rates.values()],
        "ids": [segment for of_topic in rates.values() for segment in of_topic],
        "msgRateIn": of_each,
        **dict.fromkeys(("bytesRateIn", "msgRateOut", "bytesRateOut"), [0.0] * len(of_each)),
    }
    return record("segment-stats", reporter, body)


def consumers(
    number: int,
    at: int = 1,
    *,
    event: str = "registered",
    kind: str = "STREAM",
    sub: str = "billing",
    topic: str = TOPIC,
) -> RawRecord:
    """A consumer event; `number` sessions remain after it."""
    body = {
        "v": 1,
        "topic": topic,
        "subscription": sub,
        "type": kind,
        "event": event,
        "consumer": "c",
        "consumers": number,
        "at": at,
    }
    return record("consumer-events", topic, body)


def delivery(*slow: dict[str, Any], reported: int, at: int = 1, topic: str = TOPIC) -> RawRecord:
    """A report on the delivery of a topic; `slow` are its slow segments."""
    body = {"v": 1, "type": "delivery", "topic": topic, "at": at, "reported": reported, "segments": list(slow)}
    return record("control-events", topic, body)


def layout(
    segments: SegmentLayout,
    cause: str = "created",
    at: int = 1,
    topic: str = TOPIC,
    policy: dict[str, Any] | None = None,
) -> RawRecord:
    """A layout event."""
    metadata = json.loads(segments.to_metadata().to_json())
    if policy is not None:
        metadata["autoScalePolicy"] = policy
    return record(
        "control-events",
        topic,
        {"v": 1, "type": "layout", "topic": topic, "cause": cause, "layout": metadata, "at": at},
    )


def sent_by(sender: int, announced: RawRecord) -> RawRecord:
    """The same announcement, with the number of its sender, at the end of what was recorded so far."""
    assert announced.key is not None
    return record(announced.source, announced.key.decode(), {"sender": sender} | json.loads(announced.value or b""))


def of_life(created_at: int, announced: RawRecord, at: int | None = None) -> RawRecord:
    """The same announcement of the life of its topic that began then, at the end of what was recorded so far; `at`:
    when it was made, if another instant."""
    assert announced.key is not None
    body = json.loads(announced.value or b"") | {"topicCreatedAt": created_at} | ({} if at is None else {"at": at})
    return record(announced.source, announced.key.decode(), body)


def tick(at: int, topic: str | None = None, *, home: bool = True) -> RawRecord:
    """A tick for every topic, or for one."""
    body = {"v": 1, "type": "tick", "at": at} | ({} if topic is None else {"topic": topic})
    return record("control-events", topic or EVERY_TOPIC, body, home=home)


def outcome(decision_id: str, status: str, at: int = 1, topic: str = TOPIC) -> RawRecord:
    """How the application of a decision ended; `absent`: superseded, as the cluster does not know the topic."""
    body = {"v": 1, "type": "outcome", "decisionId": decision_id, "topic": topic, "status": status, "at": at}
    if status == "absent":
        body |= {"status": "superseded", "absent": True}
    return record("control-events", topic, body)


def configured(override: dict[str, Any] | None = None, profile: str = "default", *, home: bool = True) -> RawRecord:
    """What the job says of its own policy when it starts."""
    body = {"v": 1, "type": "policy", "scope": "cluster", "profile": profile, "policy": override, "at": 1}
    return record("control-events", EVERY_TOPIC, body, home=home)


def policy(override: dict[str, Any] | None, namespace: str | None = None, *, home: bool = True) -> RawRecord:
    """A policy of the cluster, or of a namespace; None removes it."""
    body: dict[str, Any] = {
        "v": 1,
        "type": "policy",
        "scope": "namespace" if namespace else "cluster",
        "policy": override,
        "at": 1,
    }
    if namespace:
        body["name"] = namespace
    return record("control-events", EVERY_TOPIC, body, home=home)
