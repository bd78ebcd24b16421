"""Chaos run: rounds of work under faults, each followed by rest and a check, and a final check.

Stage: above the clients and the nodes; `tests.harness.chaos.__main__` and a test call it. What was seen in a round is
dropped once it was checked, and sealed segments are pruned, so that an hour needs no more memory than a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient

from anabranch.controller.layouts.store import LayoutStore
from anabranch.controller.metadata.zookeeper import ZooKeeperStore
from anabranch.controller.operations.journal import list_operations
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.kafka_names import kafka_topic, segment_of
from decisions.topic.layout import SegmentLayout
from decisions.topic.segment import segment_topic
from schemas.kafka.connection import KafkaConnection
from tests.harness.chaos.announced import NAMESPACE, Announced, Announcements, FromKafka, FromOutbox
from tests.harness.chaos.checker import Checker
from tests.harness.chaos.clients import SUBSCRIPTION, CallFailed, Topic, Watcher, seen_layout
from tests.harness.chaos.consumers import Consumer
from tests.harness.chaos.faults import FAULTS, Faults
from tests.harness.chaos.history import AnnouncedCount, ClientHistory, End, SeenAssignment
from tests.harness.chaos.nodes import NOWHERE, ControllerNode
from tests.harness.chaos.ownership import longest_overlap
from tests.harness.chaos.traffic import Traffic
from tests.harness.ensemble import ZooKeeperEnsemble

NODES = 3
SESSION_S = 1.5
GRACE_S = 3.0
"""Longer than a session, and shorter than the longest fault, so that consumers are evicted."""
LONGEST_FAULT_S = 5.0
REST_S = 60.0
"""Longest time until things have come to rest."""
CHROOT = "/chaos"
RETENTION_S = 5.0
"""Sealed segments are pruned after this time: a topic with all segments of an hour is too large for ZooKeeper."""
SAY_EVERY_S = 60.0
MIN_ROUNDS = 2
"""Whole rounds of a run at least, even of a short one on a slow machine."""


@dataclass(frozen=True)
class Plan:
    """The size of a run."""

    seconds: float
    seed: int = 1
    topics: int = 3
    consumers: int = 3
    """With a connection, of each topic."""
    round_seconds: float = 12.0
    renew_seconds: float = 10.0
    """Between two deletions of a topic, on average."""


@dataclass
class Totals:
    """Totals of a run so far."""

    layouts: int = 0
    assignments: int = 0
    announcements: int = 0
    lives: int = 0
    """Times that a topic was created."""
    evictions: int = 0
    """Consumers with connections whose grace period ended."""
    held: int = 0
    """Times that a consumer held a segment."""
    longest_overlap_s: float = 0.0
    """That two consumers held one segment: a push is on its way for a moment."""
    sent: int = 0
    received: int = 0
    """Messages."""
    answers: Counter[str] = field(default_factory=Counter)
    """By kind of call and status."""

    @property
    def changes(self) -> int:
        """Calls that were answered with success."""
        return sum(count for answer, count in self.answers.items() if answer.endswith(" 204"))


class Chaos:
    """Controllers on the ZooKeeper at an address, and everything that is done to them."""

    def __init__(
        self,
        folder: Path,
        ensemble: ZooKeeperEnsemble,
        plan: Plan,
        say: Callable[[str], None] = print,
        kafka: str | None = None,
    ) -> None:
        """Prepare the nodes of a run.

        `kafka`: bootstrap address of a broker that has the three topics; every segment is then a topic there.
        """
        self.totals = Totals()
        self.ends: list[End] = []
        settings = (
            f"session_seconds = {SESSION_S}\nconsumer_grace_seconds = {GRACE_S}\n"
            f'sealed_retention_seconds = {RETENTION_S}\nsegments = "{"kafka" if kafka else "none"}"'
        )
        self._nodes = [
            ControllerNode(folder / f"node{at}", ensemble.address, CHROOT, settings, kafka or NOWHERE)
            for at in range(NODES)
        ]
        self._history = ClientHistory()
        self._kafka, self._broken = kafka, list[str]()
        self._checker = Checker(repeats=kafka is not None)
        self._ensemble, self._plan, self._say = ensemble, plan, say
        self._random = random.Random(plan.seed)
        self._faults = Faults(self._nodes, ensemble, SESSION_S, LONGEST_FAULT_S, self._random)
        self._topics: list[Topic] = []
        self._traffic: list[Traffic] = []
        self._connected: Counter[str] = Counter()
        """Consumers of each topic, as they were announced last."""

    @property
    def faults(self) -> Mapping[str, int]:
        """Number of times each fault was made."""
        return self._faults.counts

    async def run(self) -> list[str]:
        """All of it; every rule that was broken, in words. It ends with the round that breaks one."""
        announcements: Announcements | None = None
        try:
            await asyncio.to_thread(self._start_all)
            self._store = await asyncio.to_thread(ZooKeeperStore, self._ensemble.address, CHROOT)
            announcements = FromKafka(self._store, self._kafka) if self._kafka else FromOutbox(self._store)
            self._topics = [self._topic(number) for number in range(self._plan.topics)]
            for topic in self._topics:
                await asyncio.wait_for(topic.create(), REST_S)
            tasks = [asyncio.create_task(work) for work in self._work()]
            try:
                await self._rounds(announcements)
            finally:
                for task in tasks:
                    task.cancel()
                for traffic in self._traffic:
                    traffic.stop()
                for ended in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(ended, Exception):
                        self._broken.append(f"a client failed: {ended!r}")
                for topic in self._topics:
                    await asyncio.to_thread(topic.close)
            if not self._broken:
                await asyncio.to_thread(self._look_at_the_end, announcements)
                self._judge()
        except TimeoutError as error:
            self._broken.append(str(error))
        finally:
            if announcements is not None:
                announcements.close()
                self._store.close()
            for node in self._nodes:
                await asyncio.to_thread(node.close)
        return self._broken

    def _start_all(self) -> None:
        for node in self._nodes:
            node.start()
        for node in self._nodes:
            node.wait_until_ready()

    def _topic(self, number: int) -> Topic:
        urls = [node.url for node in self._nodes]
        return Topic(f"topic://{NAMESPACE}/t{number}", urls, self._history, self._plan.seed * 100 + number)

    def _work(self) -> Iterable[asyncio.Future[None] | object]:
        seeds = itertools.count(self._plan.seed * 10_000)
        for topic in self._topics:
            yield from (topic.call_for_ever() for _ in range(2))
            yield topic.renew_for_ever(self._plan.renew_seconds)
            yield Watcher(topic, next(seeds)).run()
            for number in range(self._plan.consumers):
                yield Consumer(topic, f"c{number}", GRACE_S, next(seeds)).run()
            if self._kafka is not None:
                traffic = Traffic(topic, self._kafka, next(seeds))
                self._traffic.append(traffic)
                yield traffic.write_for_ever()
                yield from (traffic.read_for_ever(consumer) for consumer in topic.consumers)

    async def _rounds(self, announcements: Announcements) -> None:
        began = said = time.monotonic()
        end = began + self._plan.seconds
        for number in itertools.count(1):
            for topic in self._topics:
                topic.working.set()
            until = time.monotonic() + self._plan.round_seconds
            if number > MIN_ROUNDS:
                until = min(end, until)
            while time.monotonic() < until:
                await self._faults.one()
            await self._rest()
            self._history.announced += await asyncio.to_thread(announcements.read)
            self._judge()
            now = time.monotonic()
            is_over = bool(self._broken) or (now >= end and number >= MIN_ROUNDS)
            if now - said >= SAY_EVERY_S or is_over:
                said = now
                faults = ", ".join(f"{self.faults.get(name, 0)} {name}" for name in FAULTS)
                totals = self.totals
                self._say(
                    f"{(now - began) / 60:.1f} min, round {number}: {totals.changes} changes done, "
                    f"{totals.lives} lives, {totals.evictions} evictions, {totals.layouts} layouts seen, "
                    f"{totals.sent} messages sent, {totals.received} received; {faults}; "
                    f"{len(self._broken)} rules broken"
                )
            if is_over:
                return

    def _evictions(self, announced: Iterable[Announced]) -> int:
        """Return the number of evicted consumers: those of this subscription never say goodbye."""
        found = 0
        for one in announced:
            if isinstance(one, AnnouncedCount) and one.subscription == SUBSCRIPTION:
                found += not one.deleted and one.consumers < self._connected[one.topic]
                self._connected[one.topic] = one.consumers
        return found

    def _judge(self) -> None:
        """Check the round's history, count it and drop it."""
        seen, totals = self._history, self.totals
        for consumer in (consumer for topic in self._topics for consumer in topic.consumers):
            consumer.report()
        self._broken += self._checker.check(seen)
        totals.evictions += self._evictions(seen.announced)
        totals.held += len(seen.held)
        totals.longest_overlap_s = max(totals.longest_overlap_s, longest_overlap(seen.held))
        totals.lives = sum(topic.last_life + 1 for topic in self._topics)
        totals.sent = sum(traffic.total_sent for traffic in self._traffic)
        totals.received = sum(traffic.total_received for traffic in self._traffic)
        totals.layouts += len(seen.layouts)
        totals.assignments += len(seen.assignments)
        totals.announcements += len(seen.announced)
        totals.answers.update(f"{call.kind} {call.status or 'no answer'}" for call in seen.calls)
        self.ends += seen.ends
        seen.clear()

    async def _rest(self) -> None:
        """Stop the work, and wait until every consumer has a connection and every segment one owner."""
        for topic in self._topics:
            topic.working.clear()
        for topic in self._topics:
            await _until(lambda topic=topic: self._is_calm(topic), f"{topic.name} comes to rest")
            self._history.assignments.append(await self._assignment(topic))
        for traffic in self._traffic:
            with contextlib.suppress(TimeoutError):
                await _until(lambda traffic=traffic: _all_received(traffic), "all messages are received")
            self._history.deliveries.append(traffic.take_delivery())

    async def _is_calm(self, topic: Topic) -> None:
        """Raise `_NotYet` unless calls and operations have ended and every segment is assigned."""
        if topic.busy or topic.life is None:
            raise _NotYet("calls are under way")
        for operation in await topic.get(self._nodes[0].url, "/operations"):
            if operation["step"] not in ("done", "superseded"):
                raise _NotYet(f"an operation is at {operation['step']}")
        if any(consumer.holds is None for consumer in topic.consumers):
            raise _NotYet("a consumer has no connection")
        assignment = await self._assignment(topic)
        if sorted(segment for held in assignment.held.values() for segment in held) != sorted(assignment.wanted):
            raise _NotYet(f"segments are not shared out yet: {assignment}")

    async def _assignment(self, topic: Topic) -> SeenAssignment:
        """Return the consumers' assignments.

        Without segment topics of its own, every sealed segment is drained at once.
        """
        layout = await topic.read(self._nodes[0].url)
        held = {consumer.name: tuple(sorted(consumer.held_now())) for consumer in topic.consumers}
        return SeenAssignment(topic.name, SUBSCRIPTION, frozenset(layout.active), held)

    def _look_at_the_end(self, announcements: Announcements) -> None:
        """Wait until nothing is pruned between two looks: then the announcements match the layouts."""
        deadline = time.monotonic() + REST_S
        while True:
            before = [self._end(topic) for topic in self._topics]
            self._history.announced += announcements.read()
            ends = [self._end(topic) for topic in self._topics]
            same = [end.layout.epoch for end in before] == [end.layout.epoch for end in ends]
            if (same and all(_has_its_topics(end) for end in ends)) or time.monotonic() > deadline:
                self._history.ends += ends
                return
            time.sleep(1)

    def _end(self, topic: Topic) -> End:
        store = LayoutStore(self._store)
        stored = store.topic(topic.name)
        assert stored is not None, f"{topic.name} is gone"
        layout = SegmentLayout.from_metadata(stored.metadata)
        layout.check()
        now = time.monotonic()
        record = stored.metadata.model_dump(mode="json", by_alias=True)
        consumers = {
            found.name: frozenset(members.consumers)
            for found in store.subscriptions(topic.name)
            if found.name != SUBSCRIPTION and (members := store.members(topic.name, found.name))
        }
        unfinished = [one for one in list_operations(store, topic.name) if not one.has_ended]
        return End(
            layout=seen_layout(topic.name, record, "the store", now, now),
            open_operations=tuple(f"{one.kind} {one.id}" for one in unfinished),
            consumers=consumers,
            segment_topics=_segment_topics(self._kafka, topic.name, layout.created_at_ms) if self._kafka else None,
            segments={segment_topic(topic.name, one): not one.is_active for one in layout.segments.values()},
        )


def _segment_topics(bootstrap: str, topic: str, life: int | None) -> Mapping[str, bool]:
    """Return the Kafka segments of a topic, and for each whether it is terminated.

    Segments of earlier lives are keyed by their Kafka names.
    """
    kafka = KafkaConnection(bootstrap)
    segments = KafkaSegments(kafka)
    prefix = f"segment{topic.removeprefix('topic')}/"
    names = AdminClient(kafka.librdkafka({"log_level": 0})).list_topics(timeout=10).topics
    found = [segment_of(name) for name in names if name.startswith("segment..")]
    return {
        one.segment if one.life == life else kafka_topic(*one): segments.of_incarnation(one.life).is_terminated(
            one.segment
        )
        for one in found
        if one.segment.startswith(prefix)
    }


def _has_its_topics(end: End) -> bool:
    return end.segment_topics is None or end.segment_topics == end.segments


async def _all_received(traffic: Traffic) -> None:
    if missing := traffic.missing():
        raise _NotYet(f"{len(missing)} messages are not received")


class _NotYet(Exception):
    pass


async def _until(attempt: Callable[[], object], what: str) -> None:
    """Try until it does not raise; `TimeoutError` after `REST_S`."""
    end = time.monotonic() + REST_S
    while True:
        try:
            await attempt()  # type: ignore[misc]
            return
        except (_NotYet, CallFailed, OSError) as error:
            if time.monotonic() > end:
                raise TimeoutError(f"not in {REST_S:.0f} s: {what}: {error!r}") from error
        await asyncio.sleep(0.1)
