"""Fake of the part of Pulsar's REST interface that a collector reads, of any size and with faults.

Stage: for tests and benchmarks; a real Pulsar cannot be made to cut an answer in the middle, nor to serve ten thousand
topics on a small machine. Answers have the form of 5.0.0-M1. Each broker listens on a port of its own.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from decisions.topic.layout import SegmentLayout
from decisions.topic.names import segment_descriptor, segment_topic_name

Fault = Callable[["_Handler", bytes], None]
"""Answers in place of the proper answer, which it is given."""


@dataclass
class FakeTopic:
    """One scalable topic: what the cluster knows of it, and the rates of each segment."""

    layout: SegmentLayout
    consumers: dict[str, int] = field(default_factory=dict)
    rates: dict[int, tuple[float, float, float, float]] = field(default_factory=dict)
    """Messages in, bytes in, messages out and bytes out per second, by segment; others are idle."""
    slow: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Stats of segments with a backlog, as Pulsar 5.0.0 has them."""


@dataclass
class FakeCluster:
    """State shared by all brokers; tests may change it while it is served."""

    topics: dict[str, FakeTopic] = field(default_factory=dict)
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)
    tenants: dict[str, list[str]] = field(default_factory=lambda: {"acme": ["acme/shop"]})
    period: float = 1.0
    """Between two computations of the rates, seconds."""
    brokers: list[FakeBroker] = field(default_factory=list)
    listed: list[str] | None = None
    """The brokers that the cluster lists, if not all."""
    calls: Counter[str] = field(default_factory=Counter)
    """By kind: the last part of the path."""
    bytes_sent: int = 0
    leaders: dict[str, str] = field(default_factory=dict)
    """By topic, the broker that leads it."""
    controllers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The brokers that were asked for the consumers of each topic: there each keeps a controller, leading or not."""

    def topic(self, name: str, segments: int = 1, **consumers: int) -> FakeTopic:
        """Create a topic."""
        made = FakeTopic(SegmentLayout.create(segments, int(time.time() * 1000)), dict(consumers))
        self.topics[name] = made
        return made

    def owner(self, topic: str, segment: int) -> int:
        """Which broker serves a segment."""
        return (hash(topic) + segment) % len(self.brokers)


class FakeBroker:
    """One broker of a cluster."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.fault: Fault | None = None
        """Instead of the proper answers to the calls in `faulty`."""
        self.faulty = "broker-stats"
        self.is_stuck = False
        """Whether it has stopped to compute rates."""
        self.computations: list[tuple[float, float, bytes]] = []
        """Each with the instant that it was due, when it was done (`time.monotonic`) and the digest of its answer."""
        self._computed_at = float("-inf")
        self._computed = b"{}"
        self._lock = threading.Lock()
        self.began = time.monotonic()
        self._server: ThreadingHTTPServer | None = None
        self.start()

    def start(self, port: int = 0) -> None:
        """Listens; on the port it had before, if that is given."""
        handler = type("Handler", (_Handler,), {"broker": self})
        self._server = _Server(("127.0.0.1", port), handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Stop listening, and drop all connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def name(self) -> str:
        """Broker name in the cluster's list."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.name}"

    def load(self) -> bytes:
        """The answer of broker-stats: computed anew every `period` seconds, the same bytes in between."""
        with self._lock:
            if self.is_stuck:
                return self._computed
            turn = (time.monotonic() - self.began) // self.cluster.period
            if turn > self._computed_at:
                self._computed_at = turn
                self._computed = json.dumps(self._compute()).encode()
                digest = hashlib.blake2b(self._computed, digest_size=16).digest()
                due = self.began + turn * self.cluster.period
                self.computations.append((due, time.monotonic(), digest))
                del self.computations[:-100]
            return self._computed

    def compute_on_time(self) -> None:
        """From now on it computes when that is due, as a real one does, and not when somebody asks."""

        def compute() -> None:
            while True:
                self.load()
                turn = (time.monotonic() - self.began) // self.cluster.period + 1
                time.sleep(max(0.0, self.began + turn * self.cluster.period - time.monotonic()) + 0.001)

        threading.Thread(target=compute, daemon=True).start()

    def _compute(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        number = self.cluster.brokers.index(self)
        for name, topic in list(self.cluster.topics.items()):
            if not name.removeprefix("topic://").split("/", 2)[-1]:
                continue
            namespace = "/".join(name.removeprefix("topic://").split("/")[:2])
            for segment in topic.layout.active:
                if self.cluster.owner(name, segment.segment_id) != number:
                    continue
                rates = topic.rates.get(segment.segment_id, (0.0, 0.0, 0.0, 0.0))
                place = list(topic.layout.active).index(segment)
                attached = {
                    subscription: _SUBSCRIPTION
                    | {"consumers": [_consumer(place % count, segment.segment_id)] if count else []}
                    | ({"msgBacklog": 9_000} if segment.segment_id in topic.slow else {})
                    for subscription, count in topic.consumers.items()
                }
                descriptor = segment_descriptor(segment.start, segment.end, segment.segment_id)
                bundle = found.setdefault(namespace, {}).setdefault("0x00000000_0xffffffff", {})
                bundle.setdefault("persistent", {})[segment_topic_name(name, descriptor)] = {
                    "publishers": [],
                    "replication": {},
                    "subscriptions": attached,
                    "producerCount": 1,
                    "averageMsgSize": 0.0,
                    "msgRateIn": rates[0],
                    "msgRateOut": rates[2],
                    "msgInCount": int(rates[0] * self._computed_at * self.cluster.period),
                    "bytesInCount": 0,
                    "msgOutCount": 0,
                    "bytesOutCount": 0,
                    "msgThroughputIn": rates[1],
                    "msgThroughputOut": rates[3],
                    "storageSize": 0,
                    "backlogSize": 0,
                    "pendingAddEntriesCount": 0,
                    "filteredEntriesCount": 0,
                }
        return found


def _consumer(number: int, segment: int) -> dict[str, Any]:
    """A consumer of a subscription, as it is attached to one of its segments."""
    return _CONSUMER | {"consumerName": f"c{number}-seg-{segment}"}


_CONSUMER = {
    "address": "/127.0.0.1:47980",
    "consumerName": "c0-seg-0",
    "availablePermits": 1000,
    "connectedSince": "2026-11-22T15:23:23.248997381Z",
    "msgRateOut": 0.0,
    "msgThroughputOut": 0.0,
    "msgRateRedeliver": 0.0,
    "avgMessagesPerEntry": 0,
    "messageAckRate": 0.0,
    "clientVersion": "Pulsar-Java-v5.0.0-M1",
    "metadata": {},
}
_SUBSCRIPTION: dict[str, Any] = {
    "msgBacklog": 0,
    "msgRateExpired": 0.0,
    "msgRateOut": 0.0,
    "messageAckRate": 0.0,
    "msgThroughputOut": 0.0,
    "msgRateRedeliver": 0.0,
    "numberOfEntriesSinceFirstNotAckedMessage": 1,
    "type": "Exclusive",
    "totalNonContiguousDeletedMessagesRange": 0,
    "filterProcessedMsgCount": 0,
    "filterAcceptedMsgCount": 0,
    "filterRejectedMsgCount": 0,
    "filterRescheduledMsgCount": 0,
}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *given: Any) -> None:
        self.open: set[Any] = set()
        super().__init__(*given)

    def process_request(self, request: Any, address: Any) -> None:
        self.open.add(request)
        super().process_request(request, address)

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        for request in list(self.open):
            self.shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    broker: FakeBroker

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].removeprefix("/admin/v2/").split("/")
        cluster = self.broker.cluster
        cluster.calls[parts[0] if parts[0] != "scalable" or len(parts) < 4 else f"scalable-{len(parts)}"] += 1
        status, body = self._answer(parts)
        if self.broker.fault is not None and parts[0] == self.broker.faulty:
            self.broker.fault(self, body)
        else:
            self.send(status, body)

    def do_POST(self) -> None:
        """Answer a split of a segment that cannot exist, as the topic's leader does.

        Without a leader, the broker that is asked takes the lead.
        """
        parts = self.path.removeprefix("/admin/v2/scalable/").split("/")
        cluster, topic = self.broker.cluster, "topic://" + "/".join(parts[:3])
        cluster.calls["split"] += 1
        listed = cluster.listed if cluster.listed is not None else [one.name for one in cluster.brokers]
        if topic not in cluster.topics or parts[3:] != ["split", "-1"]:
            self.send(404, b'{"reason":"Scalable topic not found"}')
            return
        if cluster.leaders.get(topic) not in listed:
            cluster.leaders[topic] = self.broker.name
        leader = cluster.leaders[topic]
        if leader == self.broker.name:
            reason = "Message: Segment not found: -1\n\nStacktrace:\n\njava.lang.IllegalArgumentException: no"
            self.send(500, json.dumps({"reason": reason}).encode())
        else:
            self.send(307, b"", location=f"http://{leader}{self.path}")

    def send(self, status: int, body: bytes, length: int | None = None, location: str | None = None) -> None:
        """An answer; `length` is said to be its length, if that is another one."""
        self.broker.cluster.bytes_sent += len(body)
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, parts: list[str]) -> tuple[int, bytes]:
        cluster = self.broker.cluster
        match parts:
            case ["brokers", "configuration", "runtime"]:
                return _ok({"statsUpdateFrequencyInSecs": str(int(max(cluster.period, 1)))})
            case ["brokers", *_]:
                return _ok(cluster.listed if cluster.listed is not None else [one.name for one in cluster.brokers])
            case ["tenants"]:
                return _ok(list(cluster.tenants))
            case ["namespaces", tenant]:
                return _ok(cluster.tenants.get(tenant, []))
            case ["namespaces", tenant, name, "scalableTopicAutoScalePolicy"]:
                policy = cluster.policies.get(f"{tenant}/{name}")
                return _ok(policy) if policy is not None else (200, b"")
            case ["broker-stats", "topics"]:
                return 200, self.broker.load()
            case ["scalable", tenant, name]:
                return _ok([topic for topic in cluster.topics if topic.startswith(f"topic://{tenant}/{name}/")])
            case ["scalable", tenant, namespace, name, *rest]:
                topic = cluster.topics.get(f"topic://{tenant}/{namespace}/{name}")
                if topic is None:
                    return 404, b'{"reason":"Scalable topic not found"}'
                if rest[:1] == ["segments"] and rest[2:] == ["stats"]:
                    stats = topic.slow.get(int(rest[1]))
                    return _ok(stats) if stats is not None else (404, b'{"message":"Not Found"}')
                if rest == ["stats"]:
                    cluster.controllers[f"topic://{tenant}/{namespace}/{name}"].add(self.broker.name)
                    counted = {one: {"consumerCount": count} for one, count in topic.consumers.items()}
                    return _ok({"epoch": topic.layout.epoch, "subscriptions": counted})
                return 200, topic.layout.to_metadata().to_json().encode()
        return 404, b'{"message":"Not Found"}'

    def log_message(self, *_: Any) -> None:
        """Nothing: tests say what they see."""


def _ok(value: Any) -> tuple[int, bytes]:
    return 200, json.dumps(value).encode()


@contextmanager
def serving_cluster(brokers: int = 1, period: float = 1.0) -> Iterator[FakeCluster]:
    """A cluster of so many brokers."""
    cluster = FakeCluster(period=period)
    cluster.brokers = [FakeBroker(cluster) for _ in range(brokers)]
    try:
        yield cluster
    finally:
        for broker in cluster.brokers:
            broker.stop()
