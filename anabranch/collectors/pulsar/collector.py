"""Loop of the collector: it makes the calls that are due and announces what has changed.

Stage: over everything else in this folder. One thread owns all state; worker threads make the calls, and their answers
come back through a queue. Each answer is compared with what was announced, so a failed call, a late answer and a
restart need no case of their own. `loads`, `topics` and `namespaces` handle the answers; this module knows the brokers,
and which of them is asked what and when. It is long because all of it is one thread's state.
"""

import logging
import threading
import time
from collections.abc import Callable, Set
from functools import partial
from random import Random
from typing import Any

from anabranch.admin.answers import Answered, Lost, Misdirected, NotConnected, Reply
from anabranch.collectors.announced import AnnouncedState
from anabranch.collectors.announcements import KafkaRecord
from anabranch.collectors.publisher import RecordPublisher
from anabranch.collectors.pulsar.attached import AttachedConsumers
from anabranch.collectors.pulsar.brokers import Brokers, FollowedBroker
from anabranch.collectors.pulsar.calls import (
    INTERVALS,
    REQUEST_SECONDS,
    Call,
    CallAnswer,
    Calls,
    Kind,
    ReadIntervals,
    Schedule,
)
from anabranch.collectors.pulsar.coverage import broker_status, oldest_age, seen_segments
from anabranch.collectors.pulsar.delivery import DeliveryReports, segment_key
from anabranch.collectors.pulsar.loads import BrokerLoads
from anabranch.collectors.pulsar.namespaces import ListedNamespaces
from anabranch.collectors.pulsar.reader import BrokerReader
from anabranch.collectors.pulsar.refresh import Refresh
from anabranch.collectors.pulsar.sweep import Budget, Sweep
from anabranch.collectors.pulsar.topics import Topics
from anabranch.collectors.resync import Repeats
from anabranch.collectors.status import CollectorStatus, Troubles
from schemas.ids import topic_parts
from schemas.settings.processes import CollectSettings

log = logging.getLogger(__name__)

STATUS_SECONDS = 2.0
MAX_CALLS_IN_FLIGHT = 16
"""Maximum of concurrent calls; a quarter of them to one broker."""
DEFAULT_REFRESH_SECONDS = 60.0
"""As Pulsar ships `statsUpdateFrequencyInSecs`; for a broker that does not say it."""
MAX_TROUBLES = 20
_IDLE_SECONDS = 0.05


class PulsarCollector:
    """Collects one cluster, whose address `base` leads to."""

    def __init__(
        self,
        settings: CollectSettings,
        url: str,
        base: BrokerReader,
        announced: AnnouncedState,
        outlet: RecordPublisher,
        seed: int | None = None,
        intervals: ReadIntervals = INTERVALS,
    ) -> None:
        """`url` is for people; `seed` is of the jitter."""
        self._intervals = intervals
        self._settings, self._url, self._base, self._announced, self._outlet = settings, url, base, announced, outlet
        self._random = Random(seed)
        self._brokers = Brokers(asks_stats=settings.consumers == "registered")
        self._troubles = Troubles()
        self._schedule = Schedule(self._random)
        self._misdirected: set[str] = set()
        """Listed brokers that may not be asked."""
        self._shared_by: tuple[Set[str], ...] = ()
        """The brokers among which the topics are shared: those that answer, and those that are listed."""
        self._calls = Calls(MAX_CALLS_IN_FLIGHT)
        self._asked: dict[Call, FollowedBroker] = {}
        """Of calls that wait for an answer: the broker as it was then. One that left and came back is another."""
        self._failed = 0
        self._namespaces = ListedNamespaces(settings, self._brokers, self._plan, intervals)
        self._repeats = Repeats(announced, settings.snapshot_seconds, self._announce)
        self._attached = None
        if not self._brokers.asks_stats:
            self._attached = AttachedConsumers(self._brokers, announced, self._announce)
        self._delivery = DeliveryReports(self._brokers, announced, self._announce)
        self._loads = BrokerLoads(
            self._brokers, announced, outlet.report, self._troubles, self._random, self._attached, self._delivery
        )
        self._topics = Topics(
            self._brokers, self._namespaces, announced, self._troubles, self._announce, self._add_topic
        )
        self._plan("brokers", "", 0)
        self._take_answer: dict[Kind, Callable[[CallAnswer], None]] = {
            "brokers": self._take_brokers,
            "settings": self._take_settings,
            "policy": self._take_policy,
            "tenants": self._namespaces.take_tenants,
            "namespaces": self._namespaces.take_namespaces,
            "topics": self._namespaces.take_topics,
            "load": self._loads.take,
            "layout": self._topics.take_layout,
            "leader": self._topics.take_leader,
            "stats": self._topics.take_stats,
            "segment": self._delivery.take_stats,
        }

    def run(self, stop: threading.Event, each: Callable[[CollectorStatus], bool] = lambda _: True) -> None:
        """Collects until `stop` is set, or `each`, which gets the status every few seconds, answers False."""
        status_at = 0.0
        while not stop.is_set():
            now = time.monotonic()
            self._dispatch(now)
            self._repeats.say(now, lambda: self._outlet.has_room)
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
        """Return whether everything was requested once and has an answer or a fault; silent brokers aside."""
        if not self._brokers.known and ("brokers", "") in self._troubles:
            return True
        if self._calls or not self._namespaces.all_listed or not self._brokers.known:
            return False
        if any(("leader", topic) not in self._troubles for topic in self._brokers.leaderless):
            return False
        if self._attached is not None and self._attached.unread and not any(b.trouble for b in self.brokers):
            return False
        if any(
            read_at == float("-inf") for read_at in (b.read_at for b in self._brokers.known.values() if not b.trouble)
        ):
            return False
        return self._topics.is_sure and all(
            sweep.untried == 0
            for b in self._brokers.known.values()
            if not b.is_silent
            for sweep in (b.consumers, b.layouts)
        )

    @property
    def brokers(self) -> list[FollowedBroker]:
        """Those that are known."""
        return list(self._brokers.known.values())

    # What is asked next

    def _plan(self, kind: Kind, key: str, seconds: float) -> None:
        self._schedule.plan(kind, key, time.monotonic(), seconds)

    def _dispatch(self, now: float) -> None:
        for broker in self._brokers.known.values():
            call = Call("load", broker.name, broker.name)
            if now >= max(broker.refresh.due_at(), broker.silent_until) and call not in self._calls:
                broker.budget.spend(now)
                self._ask(call, broker.reader.load)
        if self._calls.has_room:
            for kind, key in self._schedule.due(now):
                self._ask_planned(kind, key, now)
                if not self._calls.has_room:
                    break
        for broker in self._brokers.known.values():
            if self._settings.segment_stats:
                self._ask_about_segments(broker, now)
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

    def _any_broker(self, now: float) -> FollowedBroker | None:
        """The broker with the most calls left, of those that answer."""
        able = [
            broker
            for broker in self._brokers.known.values()
            if now >= broker.silent_until and broker.budget.has_room(now)
        ]
        return max(able, key=lambda broker: broker.budget.left, default=None)

    def _ask_about_segments(self, broker: FollowedBroker, now: float) -> None:
        """One slow segment in each round: the rest of the budget is for topics."""
        slow = self._delivery.to_ask.get(broker.name)
        if slow and now >= broker.silent_until and self._calls.has_room and broker.budget.has_room(now):
            topic, segment = next(iter(slow))
            del slow[topic, segment]
            call = Call("segment", segment_key(topic, segment), broker.name)
            self._ask(call, partial(broker.reader.segment_stats, topic, segment))
            broker.budget.take(now)

    def _ask_about_topics(self, broker: FollowedBroker, now: float) -> None:
        """Start as many requests about topics as the broker's budget allows now."""
        while (
            now >= broker.silent_until
            and broker.in_flight < MAX_CALLS_IN_FLIGHT // 4
            and self._calls.has_room
            and self._outlet.has_room
            and broker.budget.has_room(now)
        ):
            kind: Kind = "leader"
            if (topic := self._brokers.next_leaderless(now)) is None:
                kind, topic = broker.next_look(now)
            if topic is None:
                return
            asks: dict[Kind, Callable[[str], Reply[Any]]] = {
                "layout": broker.reader.layout,
                "leader": broker.reader.leader,
                "stats": broker.reader.stats,
            }
            self._ask(Call(kind, topic, broker.name), partial(asks[kind], topic))
            broker.budget.take(now)

    def _ask(self, call: Call, function: Callable[[], Reply[Any]]) -> None:
        broker = self._brokers.known.get(call.broker)
        if self._calls.make(call, function) and broker is not None and call.kind != "load":
            broker.in_flight += 1
            self._asked[call] = broker

    # What has come back

    def _take(self, answer: CallAnswer) -> None:
        call, reply, now = answer.call, answer.reply, answer.answered_at
        broker = self._brokers.known.get(call.broker)
        if (asked := self._asked.pop(call, None)) is not None:
            asked.in_flight -= 1
        if broker is not None:
            if isinstance(reply, NotConnected | Lost):
                broker.failed(str(reply), now, self._random)
            elif call.kind != "load":
                broker.answered()
        answered = isinstance(reply, Answered)
        self._failed += not answered
        self._take_answer[call.kind](answer)
        if call.kind not in ("layout", "leader", "stats", "load", "segment") and not (
            call.kind == "settings" and self._settings.load_seconds
        ):
            trouble = None if answered else f"{call.kind} {call.key}".rstrip() + f": {reply}"
            if self._concerns(call.kind, call.key):
                self._troubles.note((call.kind, call.key), trouble)
        if answered and call.kind in ("brokers", "tenants", "namespaces"):
            self._troubles.keep(self._concerns)
        self._share(now)

    def _concerns(self, kind: str, key: str) -> bool:
        """Return whether the broker, tenant or namespace that a condition is about still exists."""
        if kind in ("load", "rates", "settings"):
            return key in self._brokers.known
        if kind == "broker":
            return key in self._misdirected
        if kind == "namespaces":
            return key in self._namespaces.tenants
        return kind not in ("policy", "topics") or key in self._namespaces.names

    def _add_topic(self, topic: str, now: float) -> None:
        self._repeats.add(topic)
        if self._attached is not None:
            self._attached.count([topic], now, time.time_ns() // 1_000_000)

    def _take_policy(self, answer: CallAnswer) -> None:
        if answer.call.key in self._namespaces.names:
            self._plan("policy", answer.call.key, self._intervals.namespaces_s)
            self._topics.take_policy(answer)

    def _take_brokers(self, answer: CallAnswer) -> None:
        self._plan("brokers", "", self._intervals.brokers_s)
        if not isinstance(answer.reply, Answered):
            return
        readers: dict[str, BrokerReader | Misdirected | None] = answer.reply.value
        self._misdirected = {name for name, reader in readers.items() if isinstance(reader, Misdirected)}
        for name, reader in readers.items():
            if isinstance(reader, Misdirected):
                self._troubles.note(("broker", name), f"broker {name!r} is not asked: {reader}")
            elif reader is not None and name not in self._brokers.known:
                self._add_broker(name, reader)
        for topic in self._announced.before:
            if not self._settings.namespaces or topic_parts(topic).full_namespace in self._settings.namespaces:
                self._brokers.add_topic(topic, answer.answered_at)
        for name in self._brokers.known.keys() - readers.keys():
            log.info("broker %s has left", name)
            del self._brokers.known[name]

    def _add_broker(self, name: str, reader: BrokerReader) -> None:
        chosen, pause = self._settings, self._intervals
        log.info("broker %s has joined", name)
        self._brokers.known[name] = FollowedBroker(
            name,
            reader,
            Refresh(chosen.load_seconds or DEFAULT_REFRESH_SECONDS),
            Budget(chosen.calls_per_second),
            Sweep(pause.consumers_s),
            Sweep(pause.layouts_s if self._brokers.asks_stats else pause.consumers_s),
        )
        self._plan("settings", name, 0)

    def _take_settings(self, answer: CallAnswer) -> None:
        if (broker := self._brokers.known.get(answer.call.key)) is None:
            return
        if isinstance(answer.reply, Answered):
            broker.refresh.period = self._settings.load_seconds or answer.reply.value
        self._plan("settings", answer.call.key, 600 if isinstance(answer.reply, Answered) else 60)

    def _announce(self, records: list[KafkaRecord]) -> None:
        for record in records:
            self._outlet.announce(record)

    def _share(self, now: float) -> None:
        """Brokers that have fallen silent or left leave their topics to the others."""
        able = frozenset(name for name, broker in self._brokers.known.items() if not broker.is_silent)
        shared_by = able or frozenset(self._brokers.known), frozenset(self._brokers.known)
        if shared_by != self._shared_by:
            self._shared_by = shared_by
            self._brokers.share_again(now)

    # How it goes

    @property
    def _consumers_unread(self) -> int:
        if self._attached is not None:
            return self._attached.unread
        return len(self._brokers.leaderless) + sum(broker.consumers.unread for broker in self.brokers)

    def _consumers_age(self, used: bool = False) -> float:
        """Age of the oldest count of consumers, seconds. Attached ones are as old as the load that shows them."""
        if self._attached is None:
            return oldest_age((broker.consumers for broker in self.brokers), used)
        now = time.monotonic()
        return max((now - max(broker.read_at, broker.joined_at) for broker in self.brokers), default=0.0)

    def status(self) -> CollectorStatus:
        """Return the collector's status; only for the thread that runs it."""
        troubles = [*([self._outlet.trouble] if self._outlet.trouble else []), *self._troubles]
        listed = self._namespaces.topics
        seen = seen_segments(self.brokers, self._announced.topics, REQUEST_SECONDS, time.monotonic())
        return CollectorStatus(
            url=self._url,
            at=time.time_ns() // 1_000_000,
            stale_after_seconds=10 * STATUS_SECONDS,
            brokers=[
                broker_status(broker, time.monotonic())
                for broker in sorted(self.brokers, key=lambda broker: broker.name)
            ],
            topics=len(self._announced.topics),
            topics_listed=len(listed),
            topics_unread=len(listed - self._announced.topics.keys()),
            namespaces_unlisted=self._namespaces.unlisted,
            consumers_unread=self._consumers_unread,
            segments_known=seen.known,
            segments_seen=seen.seen,
            unseen=seen.unseen,
            consumers_age_seconds=self._consumers_age(),
            used_consumers_age_seconds=self._consumers_age(used=True),
            layouts_age_seconds=oldest_age(broker.layouts for broker in self.brokers),
            samples=self._loads.samples,
            events=self._outlet.sent,
            waiting=self._outlet.waiting + self._outlet.samples_waiting,
            lost=self._outlet.lost,
            calls=self._calls.made,
            failed_calls=self._failed,
            troubles=troubles[:MAX_TROUBLES],
        )
