"""Typed calls of the admin interface: scalable topics, their layouts, subscriptions and policies.

Stage: used by executor, collectors, command line, page and local run. The paths are Pulsar 5's, so the address may be
that of a Pulsar 5; a topic is `topic://tenant/namespace/name`, a namespace `tenant/namespace`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from anabranch.admin.answers import Answered, Fault, Nonsense, Refused, Reply, Response, Unanswered, judge_response
from anabranch.admin.paths import (
    backlog_path,
    consumer_path,
    namespace_path,
    namespace_record_path,
    policy_path,
    subscription_path,
    tenant_path,
    topic_path,
)
from anabranch.admin.transport import Query, Transport
from anabranch.admin.watch import Pushed, watch_layouts
from decisions.topic.layout import SegmentLayout
from schemas.kafka.messages import SubscriptionType
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

DECISION_HEADER = "X-Anabranch-Decision"
"""Id of the decision that a split or merge applies (only in our controller)."""
LAYOUT_HEADER = "X-Anabranch-Layout"
"""Tag of the layout that a split or merge is meant for (only in our controller)."""

_NO_SEGMENT = "segment not found"
"""Part of a leader's response about a missing segment."""

T = TypeVar("T")


class ScalableTopics:
    """Scalable topics behind one admin interface; thread-safe. Faults are returned, never raised."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create_topic(self, topic: str, segments: int, properties: Mapping[str, str]) -> Reply[None]:
        """PUT: create a topic with `segments` equal segments."""
        return self._do("PUT", topic_path(topic), {"numInitialSegments": str(segments)}, json.dumps(dict(properties)))

    def adopt_topic(self, topic: str, adoption: Mapping[str, Any]) -> Reply[None]:
        """POST …/migrate: create a topic from a sealed Kafka topic (only in our controller)."""
        return self._do("POST", f"{topic_path(topic)}/migrate", body=json.dumps(adoption))

    def list_topics(self, namespace: str, properties: Sequence[str] = ()) -> Reply[list[str]]:
        """Return the topics of a namespace that have all `properties`, each `key=value`."""
        return self._read(namespace_path(namespace), _read_names, {"property": list(properties)})

    def create_namespace(self, namespace: str) -> Reply[None]:
        """PUT /namespaces/T/N: create a namespace that exists without topics."""
        return self._do("PUT", namespace_record_path(namespace))

    def delete_namespace(self, namespace: str) -> Reply[None]:
        """DELETE /namespaces/T/N: delete a namespace without topics, with its policy."""
        return self._do("DELETE", namespace_record_path(namespace))

    def list_namespaces(self, tenant: str) -> Reply[list[str]]:
        """Return the namespaces of a tenant, each `tenant/namespace`."""
        return self._read(tenant_path(tenant), _read_names)

    def layout(self, topic: str) -> Reply[SegmentLayout]:
        """Return the current layout of a topic."""
        return self._read(topic_path(topic), _read_layout)

    def layout_record(self, topic: str) -> Reply[Any]:
        """Return the server's layout record (`ScalableTopicMetadata`), JSON."""
        return self._read(topic_path(topic), _read_json)

    def watch(self, topic: str, since: int) -> Iterator[Pushed]:
        """Yield every layout after epoch `since`, pushed by the server; see `watch_layouts`."""
        return watch_layouts(self._transport, topic, since)

    def stats(self, topic: str) -> Reply[Any]:
        """Return the server's statistics of a topic, JSON; the fields differ between servers."""
        return self._read(f"{topic_path(topic)}/stats", _read_json)

    def segment_stats(self, topic: str, segment: int) -> Reply[bytes]:
        """What the owner of a segment counts of it, as it is (Pulsar 5.0.0 and later)."""
        return self._read(f"{topic_path(topic)}/segments/{segment}/stats", bytes)

    def sealed(self, topic: str) -> Reply[Any]:
        """Return the sealed segments with the reason for keeping each, JSON (only in our controller)."""
        return self._read(f"{topic_path(topic)}/sealed", _read_json)

    def leader(self, topic: str) -> Reply[str]:
        """Return the leader of a Pulsar topic, `host:port`, without creating a controller on another server.

        Only the leader carries out splits; other servers redirect to it before they do anything. This call names a
        segment that cannot exist, so the leader refuses it. If there is no leader, the server that is asked becomes
        one.
        """
        answer = self._transport.exchange("POST", f"{topic_path(topic)}/split/-1")
        reply = _judge_answer(answer)
        if isinstance(answer, Response) and isinstance(reply, Refused) and _NO_SEGMENT in reply.reason.lower():
            return Answered(answer.url.partition("://")[2].partition("/")[0])
        return Nonsense("a segment that cannot exist was split") if isinstance(reply, Answered) else reply

    def split_segment(
        self, topic: str, segment: int, decision_id: str | None = None, seen: SegmentLayout | None = None
    ) -> Reply[None]:
        """POST …/split/ID; with `seen`, our controller refuses it (409) on any other layout."""
        return self._do("POST", f"{topic_path(topic)}/split/{segment}", headers=_of_decision(decision_id, seen))

    def merge_segments(
        self, topic: str, first: int, second: int, decision_id: str | None = None, seen: SegmentLayout | None = None
    ) -> Reply[None]:
        """POST …/merge/ID1/ID2; with `seen`, our controller refuses it (409) on any other layout."""
        return self._do("POST", f"{topic_path(topic)}/merge/{first}/{second}", headers=_of_decision(decision_id, seen))

    def rebucket_segment(
        self, topic: str, segment: int, buckets: int, decision_id: str | None = None, seen: SegmentLayout | None = None
    ) -> Reply[None]:
        """POST …/rebucket/ID: the successor has `buckets` entry buckets; `seen` as for a split."""
        path, query = f"{topic_path(topic)}/rebucket/{segment}", {"bucketCount": str(buckets)}
        return self._do("POST", path, query, headers=_of_decision(decision_id, seen))

    def delete_topic(self, topic: str, force: bool = False) -> Reply[None]:
        """DELETE; with `force` even if the topic is in use."""
        return self._do("DELETE", topic_path(topic), {"force": str(force).lower()})

    def seek_subscription(self, topic: str, subscription: str, timestamp_ms: int) -> Reply[None]:
        """POST …/subscriptions/S/seek: every segment, to the first message at a time or later, Unix ms."""
        return self._do("POST", f"{subscription_path(topic, subscription)}/seek", {"timestamp": str(timestamp_ms)})

    def clear_backlog(self, topic: str, subscription: str) -> Reply[None]:
        """POST …/subscriptions/S/skip-all: on every segment, past the last message."""
        return self._do("POST", f"{subscription_path(topic, subscription)}/skip-all")

    def register_consumer(self, topic: str, subscription: str, consumer: str, kind: SubscriptionType) -> Reply[None]:
        """PUT …/subscriptions/S/consumers/C: a consumer without a connection (only in our controller)."""
        return self._do("PUT", consumer_path(topic, subscription, consumer), {"type": kind})

    def unregister_consumer(self, topic: str, subscription: str, consumer: str) -> Reply[None]:
        """DELETE …/subscriptions/S/consumers/C (only in our controller)."""
        return self._do("DELETE", consumer_path(topic, subscription, consumer))

    def consumers(self, topic: str, subscription: str) -> Reply[Any]:
        """GET …/subscriptions/S/consumers: the consumers and their segments (only in our controller)."""
        return self._read(f"{subscription_path(topic, subscription)}/consumers", _read_json)

    def backlog(self, topic: str, descriptor: str, subscription: str) -> Reply[int]:
        """Return the messages of a segment that a subscription has not acknowledged."""
        return self._read(backlog_path(topic, descriptor, subscription), int)

    def policy(self, subject: str) -> Reply[dict[str, Any] | None]:
        """Return the override of a topic or namespace as it was set; None if there is none."""
        return self._read(policy_path(subject), _read_policy)

    def effective_policy(self, topic: str) -> Reply[Any]:
        """Return the resolved policy of a topic, JSON (only in our controller)."""
        return self._read(f"{policy_path(topic)}/effective", _read_json)

    def set_policy(self, subject: str, override: AutoScalePolicyOverride) -> Reply[None]:
        """Replace the override of a topic or namespace."""
        return self._do("POST", policy_path(subject), body=override.to_json())

    def remove_policy(self, subject: str) -> Reply[None]:
        """Remove the override of a topic or namespace."""
        return self._do("DELETE", policy_path(subject))

    def close(self) -> None:
        """Drop all connections; calls waiting for a response end with `Lost`, later ones are not sent."""
        self._transport.close()

    def _do(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply[None]:
        reply = _judge_answer(self._transport.exchange(method, path, query, body, headers))
        return Answered(None) if isinstance(reply, Answered) else reply

    def _read(self, path: str, read: Callable[[bytes], T], query: Query | None = None) -> Reply[T]:
        reply = _judge_answer(self._transport.exchange("GET", path, query))
        if not isinstance(reply, Answered):
            return reply
        try:
            return Answered(read(reply.value))
        except (ValueError, RecursionError) as error:
            return Nonsense(str(error))


def _judge_answer(answer: Response | Unanswered) -> Answered[bytes] | Fault:
    return judge_response(answer) if isinstance(answer, Response) else answer


def _of_decision(decision_id: str | None, seen: SegmentLayout | None) -> dict[str, str]:
    named = {} if decision_id is None else {DECISION_HEADER: decision_id}
    return named if seen is None else {**named, LAYOUT_HEADER: seen.tag}


def _read_layout(body: bytes) -> SegmentLayout:
    return SegmentLayout.from_metadata(ScalableTopicMetadata.model_validate_json(body))


def _read_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the answer is no JSON") from None


def _read_names(body: bytes) -> list[str]:
    names = _read_json(body)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("a list of names was expected")
    return names


def _read_policy(body: bytes) -> dict[str, Any] | None:
    if not body.strip():
        return None
    content = _read_json(body)
    if not isinstance(content, dict):
        raise ValueError("a policy was expected")
    return content
