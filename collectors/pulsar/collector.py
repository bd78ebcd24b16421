"""The loop: what is due is asked, what has changed is said.

Stage: over everything else in this folder. One thread owns all state; calls are made by worker threads, whose answers
come back through a queue. Nothing here is an event of the cluster: each answer is compared with what was said, so a
call that fails, an answer that comes late and a restart need no case of their own. What no broker says is not said
either: a broker that does not answer makes its segments unknown, never idle.
"""

from __future__ import annotations

import heapq
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Protocol

from admin.answers import Answered, Lost, Misdirected, NotConnected, Refused, Reply, ServerFault
from collectors.announcements import Record, load_records
from collectors.pulsar.broker_stats import BrokerLoad
from collectors.pulsar.brokers import Broker, Brokers
from collectors.pulsar.calls import Answer, Call, Calls, Kind
from collectors.pulsar.coverage import broker_status, oldest, seen_segments
from collectors.pulsar.reader import BrokerReader
from collectors.pulsar.refresh import Refresh
from collectors.pulsar.sweep import Budget, Sweep
from collectors.pulsar.topic_stats import TopicStats
from collectors.said import Said
from collectors.status import CollectorStatus
from schemas.base import TOPIC_PATTERN
from schemas.collect_settings import CollectSettings
from schemas.ids import topic_parts
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

log = logging.getLogger(__name__)

STATUS_SECONDS = 2.0
DEFAULT_REFRESH_SECONDS = 60.0
"""As Pulsar ships `statsUpdateFrequencyInSecs`; for a broker that does not say it."""
CONFIRM_SECONDS = 0.5
"""A topic that is not found is asked for once more after so long, before it is called deleted."""
MAX_TROUBLES = 20
_IDLE_SECONDS = 0.05
_TOPIC = re.compile(TOPIC_PATTERN)
_JITTER = 0.1


class Outlet(Protocol):
    """Where records go: `publisher.Publisher`, or a list in a test."""

    waiting: int
    samples_waiting: int
    lost: int
    sent: int
    trouble: str | None

    @property
    def has_room(self) -> bool:
        """Whether announcements are taken."""

    def announce(self, record: Record) -> None:
        """Takes an announcement."""

    def report(self, record: Record) -> None:
        """Takes samples."""

    def poll(self) -> None:
        """Takes in confirmations."""


class PulsarCollector:
    """Collects one cluster, whose address `base` leads to."""

    def __init__(
        self,
        settings: CollectSettings,
        url: str,
        base: BrokerReader,
        said: Said,
        outlet: Outlet,
        seed: int | None = None,
    ) -> None:
        """`url` is for people; `seed` is of the jitter."""
        self._settings, self._url, self._base, self._said, self._outlet = settings, url, base, said, outlet
        self._random = Random(seed)
        self._brokers = Brokers()
        self._shared_by: tuple[str, ...] = ()
        """The brokers among which the topics are shared."""
        self._calls = Calls(settings.calls_in_flight)
        self._due: list[tuple[float, int, Kind, str]] = []
        self._scheduled: set[tuple[Kind, str]] = set()
        self._number = 0
        self._listed: dict[str, set[str]] = {}
        """The topics of each namespace that was listed."""
        self._of_tenant: dict[str, set[str]] = {}
        self._missing: dict[str, float] = {}
        """Topics that were not found, and since when."""
        self._ghosts: dict[str, float] = {}
        """Topics that are not there, and when that was seen: M1 lists a deleted topic on and on."""
        self._repeating: deque[str] = deque()
        self._repeat_at = self._repeat_policies_at = 0.0
        self._troubles: dict[tuple[str, str], str] = {}
        self._samples = self._failed = 0
        self._plan("brokers", "", 0)
        if settings.namespaces:
            for namespace in settings.namespaces:
                self._add_namespace(namespace)
        else:
            self._plan("tenants", "", 0)

    def run(self, stop: threading.Event, each: Callable[[CollectorStatus], bool] = lambda _: True) -> None:
        """Collects until `stop` is set, or `each`, which gets the status every few seconds, answers False."""
        status_at = 0.0
        while not stop.is_set():
            now = time.monotonic()
            self._dispatch(now)
            self._say_again(now)
            self._outlet.poll()
            for answer in self._calls.answers(_IDLE_SECONDS):
                self._take(answer)
            if now >= status_at:
                status_at = now + STATUS_SECONDS
                if not each(self.status()):
                    return

    def close(self) -> None:
        """Waits for no call; the way to the cluster is to be closed as well."""
        self._calls.close()

    @property
    def has_seen_all(self) -> bool:
        """Whether everything was asked for once, and an answer or a fault has come."""
        started = not self._settings.namespaces and not self._of_tenant
        if self._calls or started or not self._brokers.known:
            return False
        if any(at == float("-inf") for at in (b.read_at for b in self._brokers.known.values() if not b.trouble)):
            return False
        return not self._missing and all(
            sweep.untried == 0 for b in self._brokers.known.values() for sweep in (b.consumers, b.layouts)
        ) and len(self._listed) >= len(self._namespaces)  # fmt: skip

    @property
    def brokers(self) -> list[Broker]:
        """Those that are known."""
        return list(self._brokers.known.values())

    # What is asked next

    def _plan(self, kind: Kind, key: str, seconds: float) -> None:
        """A call that is due in so many seconds, more or less; one of a kind and key at a time."""
        if (kind, key) not in self._scheduled:
            self._scheduled.add((kind, key))
            self._number += 1
            at = time.monotonic() + seconds * self._random.uniform(1 - _JITTER, 1 + _JITTER)
            heapq.heappush(self._due, (at, self._number, kind, key))

    def _dispatch(self, now: float) -> None:
        for broker in self._brokers.known.values():
            call = Call("load", broker.name, broker.name)
            is_due = now >= max(broker.refresh.due_at(), broker.silent_until)
            if is_due and call not in self._calls and self._calls.has_room:
                broker.budget.spend(now)
                self._ask(call, broker.reader.load)
        while self._due and self._due[0][0] <= now and self._calls.has_room:
            _, _, kind, key = heapq.heappop(self._due)
            self._scheduled.discard((kind, key))
            self._ask_planned(kind, key, now)
        for broker in self._brokers.known.values():
            self._ask_about_topics(broker, now)

    def _ask_planned(self, kind: Kind, key: str, now: float) -> None:
        if kind == "brokers":
            # The base is asked as long as it answers; any other broker knows the list, too.
            broker = self._any_broker(now) if ("brokers", "") in self._troubles else None
            reader = broker.reader if broker else self._base
            self._ask(
                Call(kind, key, broker.name if broker else ""),
                partial(reader.brokers, self._settings.cluster, frozenset(self._brokers.known)),
            )
            return
        broker = self._brokers.known.get(key) if kind == "settings" else self._any_broker(now)
        if broker is None:
            if kind != "settings":
                self._plan(kind, key, 0.5)
            return
        broker.budget.spend(now)
        reader = broker.reader
        calls: dict[str, Callable[[], Reply[Any]]] = {
            "settings": reader.refresh_seconds,
            "tenants": reader.cluster.tenants,
            "namespaces": lambda: reader.topics.list_namespaces(key),
            "topics": lambda: reader.topics.list_topics(key),
            "policy": lambda: reader.policy(key),
        }
        self._ask(Call(kind, key, broker.name), calls[kind])

    def _any_broker(self, now: float) -> Broker | None:
        """The broker with the most calls left, of those that answer."""
        able = [one for one in self._brokers.known.values() if now >= one.silent_until and one.budget.has_room(now)]
        return max(able, key=lambda one: one.budget.left, default=None)

    def _ask_about_topics(self, broker: Broker, now: float) -> None:
        """As many topics as the broker may be asked about now."""
        most = max(2, self._settings.calls_in_flight // 4)
        while (
            now >= broker.silent_until
            and broker.in_flight < most
            and self._calls.has_room
            and self._outlet.has_room
            and broker.budget.has_room(now)
        ):
            kind, topic = broker.next_look(now)
            if topic is None:
                return
            ask: Callable[[str], Reply[Any]] = broker.reader.layout if kind == "layout" else broker.reader.stats
            self._ask(Call(kind, topic, broker.name), partial(ask, topic))
            broker.budget.take(now)

    def _ask(self, call: Call, function: Callable[[], Reply[Any]]) -> None:
        if self._calls.make(call, function) and call.broker in self._brokers.known:
            self._brokers.known[call.broker].in_flight += 1

    # What has come back

    def _take(self, answer: Answer) -> None:
        call, reply, now = answer.call, answer.reply, answer.answered_at
        broker = self._brokers.known.get(call.broker)
        if broker is not None:
            broker.in_flight -= 1
            if isinstance(reply, NotConnected | Lost):
                broker.failed(str(reply), now, self._random)
            elif call.kind != "load":
                broker.answered()
        answered = isinstance(reply, Answered)
        self._failed += not answered
        take: dict[Kind, Callable[[Answer], None]] = {
            "brokers": self._take_brokers, "settings": self._take_settings, "tenants": self._take_tenants,
            "namespaces": self._take_namespaces, "topics": self._take_topics, "policy": self._take_policy,
            "load": self._take_load, "layout": self._take_layout, "stats": self._take_stats,
        }  # fmt: skip
        take[call.kind](answer)
        if call.kind not in ("layout", "stats", "load"):
            self._note((call.kind, call.key), None if answered else f"{call.kind} {call.key}".rstrip() + f": {reply}")
        self._share()

    def _take_brokers(self, answer: Answer) -> None:
        self._plan("brokers", "", self._settings.brokers_seconds)
        if not isinstance(answer.reply, Answered):
            return
        found: dict[str, BrokerReader | Misdirected | None] = answer.reply.value
        for name, reader in found.items():
            if isinstance(reader, Misdirected):
                self._note(("broker", name), f"broker {name!r} is not asked: {reader}")
            elif reader is not None and name not in self._brokers.known:
                self._add_broker(name, reader)
        for topic in self._said.before:
            if not self._settings.namespaces or topic_parts(topic).full_namespace in self._settings.namespaces:
                self._brokers.add_topic(topic)
        for name in self._brokers.known.keys() - found.keys():
            log.info("broker %s has left", name)
            del self._brokers.known[name]
            self._note(("load", name), None)

    def _add_broker(self, name: str, reader: BrokerReader) -> None:
        chosen = self._settings
        log.info("broker %s has joined", name)
        self._brokers.known[name] = Broker(
            name, reader, Refresh(chosen.load_seconds or DEFAULT_REFRESH_SECONDS), Budget(chosen.calls_per_second),
            Sweep(chosen.consumers_seconds), Sweep(chosen.layouts_seconds),
        )  # fmt: skip
        self._note(("broker", name), None)
        if not chosen.load_seconds:
            self._plan("settings", name, 0)

    def _take_settings(self, answer: Answer) -> None:
        broker = self._brokers.known.get(answer.call.key)
        if broker is None:
            return
        if isinstance(answer.reply, Answered):
            broker.refresh.period = answer.reply.value
        self._plan("settings", answer.call.key, 600 if isinstance(answer.reply, Answered) else 60)

    def _take_tenants(self, answer: Answer) -> None:
        self._plan("tenants", "", self._settings.namespaces_seconds)
        if not isinstance(answer.reply, Answered):
            return
        for tenant in answer.reply.value:
            self._of_tenant.setdefault(tenant, set())
            self._plan("namespaces", tenant, 0)
        for tenant in self._of_tenant.keys() - set(answer.reply.value):
            for namespace in self._of_tenant.pop(tenant):
                self._remove_namespace(namespace)

    def _take_namespaces(self, answer: Answer) -> None:
        # Planned again by the tenants.
        tenant = answer.call.key
        if not isinstance(answer.reply, Answered) or tenant not in self._of_tenant:
            return
        found = {name for name in answer.reply.value if name.startswith(f"{tenant}/") and name.count("/") == 1}
        for namespace in found - self._of_tenant[tenant]:
            self._add_namespace(namespace)
        for namespace in self._of_tenant[tenant] - found:
            self._remove_namespace(namespace)
        self._of_tenant[tenant] = found

    @property
    def _namespaces(self) -> set[str]:
        return set(self._settings.namespaces) or {one for found in self._of_tenant.values() for one in found}

    def _add_namespace(self, namespace: str) -> None:
        self._plan("topics", namespace, 0)
        self._plan("policy", namespace, 0)

    def _remove_namespace(self, namespace: str) -> None:
        for topic in self._listed.pop(namespace, ()):
            self._look_at_layout(topic)

    def _take_topics(self, answer: Answer) -> None:
        namespace = answer.call.key
        if namespace not in self._namespaces:
            return
        slower = max(1.0, len(self._namespaces) / 20, len(self._listed.get(namespace, ())) / 1_000)
        self._plan("topics", namespace, self._settings.topics_seconds * slower)
        if not isinstance(answer.reply, Answered):
            return
        names = {name for name in answer.reply.value if _is_topic(name, namespace)}
        for topic in [one for one in self._ghosts if one not in names and one.startswith(f"topic://{namespace}/")]:
            del self._ghosts[topic]
        again = answer.answered_at - self._settings.layouts_seconds
        found = {name for name in names if self._ghosts.get(name, again) <= again}
        before = self._listed.get(namespace, set())
        self._listed[namespace] = found
        for topic in found - before:
            self._brokers.add_topic(topic)
        for topic in before - found:
            self._look_at_layout(topic)

    def _look_at_layout(self, topic: str) -> None:
        broker = self._brokers.of_topic(topic)
        if broker is not None:
            broker.layouts.hurry(topic)

    def _take_policy(self, answer: Answer) -> None:
        namespace, reply = answer.call.key, answer.reply
        if namespace not in self._namespaces:
            return
        self._plan("policy", namespace, self._settings.namespaces_seconds)
        if isinstance(reply, Answered):
            policy: AutoScalePolicyOverride | None = reply.value
            self._announce(self._said.policy(namespace, policy, answer.asked_ms))

    def _take_load(self, answer: Answer) -> None:
        broker, reply = self._brokers.known.get(answer.call.key), answer.reply
        if broker is None:
            return
        broker.read_at = answer.asked_at
        if not isinstance(reply, Answered):
            broker.load = None
            broker.refresh.forget()
            broker.refresh.read_at = answer.answered_at
            if not isinstance(reply, NotConnected | Lost):
                broker.failed(str(reply), answer.answered_at, self._random)
            self._note(("load", broker.name), f"the load of broker {broker.name} is not known: {reply}")
            return
        broker.answered()
        broker.trouble = None
        self._note(("load", broker.name), None)
        load: BrokerLoad = reply.value
        previous, refresh = broker.load, broker.refresh
        broker.load = load
        is_new = refresh.note(load.digest, answer.asked_at, answer.answered_at, load.size)
        if is_new and refresh.earliest is not None:
            broker.lag = answer.answered_at - refresh.earliest
        if not is_new and answer.asked_at - broker.said_at < refresh.period:
            return
        broker.said_at = answer.asked_at
        for record in load_records(broker.name, answer.asked_ms, load.loads):
            self._outlet.report(record)
        self._samples += len(load.loads)
        self._follow_hints(load, previous, answer.answered_at)

    def _follow_hints(self, load: BrokerLoad, previous: BrokerLoad | None, now: float) -> None:
        """A load that shows other consumers than the last one, or segments that are new, says where to look."""
        before = previous.attached if previous else {}
        for topic, mark in load.attached.items():
            if before.get(topic, mark) != mark and (broker := self._brokers.of_topic(topic)):
                broker.consumers.heat(topic, now)
        known = self._said.topics
        for topic, segment, *_ in load.loads:
            if topic in known and segment >= known[topic].layout.next_segment_id:
                self._look_at_layout(topic)

    def _take_layout(self, answer: Answer) -> None:
        topic, reply = answer.call.key, answer.reply
        if isinstance(reply, Refused) and reply.status == 404 and reply.from_interface:
            self._take_missing(topic, answer)
            return
        self._missing.pop(topic, None)
        if not isinstance(reply, Answered):
            self._note(("layout", topic), f"the layout of {topic} cannot be read: {reply}")
            return
        self._note(("layout", topic), None)
        layout: ScalableTopicMetadata = reply.value
        is_new = topic not in self._said.topics
        records = self._said.layout(topic, layout, answer.asked_ms)
        self._announce(records)
        if topic in self._said.too_large:
            self._note(("layout", topic), f"the layout of {topic} is too large for a message: it cannot be scaled")
        broker = self._brokers.of_topic(topic)
        if records and broker is not None:
            broker.consumers.heat(topic, answer.answered_at)
            if is_new:
                self._repeating.append(topic)

    def _take_missing(self, topic: str, answer: Answer) -> None:
        """A topic that is not there: asked again before it is believed, for a server's memory may be behind."""
        since = self._missing.setdefault(topic, answer.asked_at)
        if answer.asked_at - since < CONFIRM_SECONDS:
            if broker := self._brokers.of_topic(topic):
                broker.layouts.hurry(topic, answer.asked_at + CONFIRM_SECONDS)
            return
        del self._missing[topic]
        self._announce(self._said.gone(topic, answer.asked_ms))
        self._brokers.remove_topic(topic)
        self._note(("layout", topic), None)
        self._note(("stats", topic), None)
        self._ghosts[topic] = answer.answered_at
        for topics in self._listed.values():
            topics.discard(topic)

    def _take_stats(self, answer: Answer) -> None:
        topic, reply = answer.call.key, answer.reply
        known = self._said.topics.get(topic)
        if not isinstance(reply, Answered):
            if isinstance(reply, Refused | ServerFault):
                # Also what M1 says of a topic that is gone.
                self._look_at_layout(topic)
            self._note(("stats", topic), f"the consumers of {topic} cannot be read: {reply}")
            return
        self._note(("stats", topic), None)
        stats: TopicStats = reply.value
        if known is None or topic in self._missing:
            return
        if stats.epoch > known.layout.epoch:
            self._look_at_layout(topic)
        types = {
            subscription: type
            for broker in self._brokers.known.values()
            if broker.load is not None
            for subscription in stats.subscriptions
            if (type := broker.load.types.get((topic, subscription)))
        }
        before = known.consumers
        self._announce(self._said.consumers(topic, stats.consumers(types), answer.asked_ms))
        if before != known.consumers and (broker := self._brokers.of_topic(topic)):
            broker.consumers.heat(topic, answer.answered_at)

    # What is said

    def _announce(self, records: list[Record]) -> None:
        for record in records:
            self._outlet.announce(record)

    def _say_again(self, now: float) -> None:
        """What was said, once more, spread over `snapshot_seconds`; and what did not reach Kafka."""
        again, self._said.again = self._said.again, []
        self._announce(again)
        if now < self._repeat_at:
            return
        self._repeat_at = now + 1.0
        if not self._repeat_policies_at:
            self._repeat_policies_at = now + self._settings.snapshot_seconds
        if now >= self._repeat_policies_at and self._outlet.has_room:
            self._repeat_policies_at = now + self._settings.snapshot_seconds
            self._announce(list(self._said.repeat_policies(time.time_ns() // 1_000_000)))
        at = time.time_ns() // 1_000_000
        for _ in range(len(self._repeating)):
            topic = self._repeating[0]
            known = self._said.topics.get(topic)
            if known is None:
                self._repeating.popleft()
                continue
            if at - known.said_at < self._settings.snapshot_seconds * 1_000 or not self._outlet.has_room:
                return
            self._repeating.rotate(-1)
            self._announce(list(self._said.repeats(topic, at)))

    # How it goes

    def _share(self) -> None:
        able = tuple(sorted(name for name, one in self._brokers.known.items() if not one.is_silent))
        able = able or tuple(sorted(self._brokers.known))
        if able != self._shared_by:
            self._shared_by = able
            self._brokers.share_again()

    def _note(self, about: tuple[str, str], trouble: str | None) -> None:
        """Only a change is worth a line in the log."""
        before = self._troubles.get(about)
        if trouble is None:
            if self._troubles.pop(about, None) is not None:
                log.info("%s %s can be read again", *about)
            return
        self._troubles[about] = trouble
        if before is None:
            log.warning("%s", trouble)

    def status(self) -> CollectorStatus:
        """How it goes, now; only for the thread that runs it."""
        troubles = [*([self._outlet.trouble] if self._outlet.trouble else []), *self._troubles.values()]
        seen = seen_segments(self.brokers, self._said.topics, self._settings.request_timeout_seconds, time.monotonic())
        return CollectorStatus(
            url=self._url,
            at=time.time_ns() // 1_000_000,
            stale_after_seconds=10 * STATUS_SECONDS,
            brokers=[broker_status(one, time.monotonic()) for one in sorted(self.brokers, key=lambda one: one.name)],
            topics=len(self._said.topics),
            topics_listed=len(set().union(*self._listed.values())),
            segments_known=seen.known,
            segments_seen=seen.seen,
            unseen=seen.unseen,
            consumers_age_seconds=oldest(one.consumers for one in self.brokers),
            layouts_age_seconds=oldest(one.layouts for one in self.brokers),
            samples=self._samples,
            events=self._outlet.sent,
            waiting=self._outlet.waiting + self._outlet.samples_waiting,
            lost=self._outlet.lost,
            calls=self._calls.made,
            failed_calls=self._failed,
            troubles=troubles[:MAX_TROUBLES],
        )


def _is_topic(name: str, namespace: str) -> bool:
    return name.startswith(f"topic://{namespace}/") and _TOPIC.fullmatch(name) is not None
