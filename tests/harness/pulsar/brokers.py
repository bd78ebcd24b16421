"""`python -m tests.harness.pulsar.brokers [FOLDER]`: collector and executor against three real Pulsar brokers.

One broker joins, one is killed with kill -9 and comes back. Prints a record, and fails when something is wrong.

Stage: by hand; it takes minutes, so it is no test.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from anabranch.admin.answers import Answered
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import Transport
from anabranch.collectors.announced import AnnouncedState
from anabranch.collectors.announcements import KafkaRecord
from anabranch.collectors.pulsar.collector import PulsarCollector
from anabranch.collectors.pulsar.reader import BrokerReader
from anabranch.collectors.status import CollectorStatus
from anabranch.local.pulsar.load import KeyedDemand, keyed_load
from anabranch.local.setup import ensure_jars, ensure_pulsar
from schemas.ids import topic_name
from schemas.kafka.messages import Rejected, SegmentStatsColumns, parse_message
from schemas.settings.root import load_settings
from tests.harness.pulsar.cluster import PulsarBroker, PulsarCluster

TOPICS, SEGMENTS = 12, 3
SPLIT_SECONDS = 30.0
"""Longest time for which a broker is asked for a split again and again."""
BUSY = topic_name("public", "default", "busy")


class Samples:
    """Sink for the collector's samples that keeps each segment's newest rates, by reporter and time."""

    def __init__(self) -> None:
        self.waiting = self.samples_waiting = self.lost = self.sent = 0
        self.trouble: str | None = None
        self.has_room = True
        self.counted: set[str] = set()
        """Topics whose consumers were announced."""
        self.said: dict[str, list[tuple[float, dict[tuple[str, int], float]]]] = defaultdict(list)
        """By broker: when, and messages in a second of each segment."""

    def announce(self, record: KafkaRecord) -> None:
        """Layouts are not looked at here; of consumers, which topics have any."""
        self.sent += 1
        if record.source == "consumer-events":
            self.counted.add(record.key)

    def report(self, record: KafkaRecord) -> None:
        """Samples of one broker."""
        message = parse_message(record.source, record.key.encode(), record.value)
        assert not isinstance(message, Rejected), message
        assert isinstance(message, SegmentStatsColumns)
        segments = iter(zip(message.ids, message.msg_rate_in, strict=True))
        found = {}
        for topic, count in zip(message.topics, message.counts, strict=True):
            for _ in range(count):
                id, rate = next(segments)
                found[topic, id] = rate
        self.said[message.reporter].append((time.monotonic(), found))

    def poll(self) -> None:
        """Nothing waits."""


class Collecting:
    """A collector at work."""

    def __init__(self, url: str, consumers: str = "attached", topics: int = TOPICS + 1) -> None:
        settings = load_settings(environment={}).collect.model_copy(
            update={"namespaces": ["public/default"], "consumers": consumers}
        )
        self._topics = topics
        self.samples, self._stop = Samples(), threading.Event()
        transport = Transport(url, None, user_agent="anabranch-collect", timeout_seconds=3)
        collector = PulsarCollector(settings, url, BrokerReader.over(transport), AnnouncedState(1), self.samples)
        self.status = collector.status()

        def keep(status: CollectorStatus) -> bool:
            self.status = status
            return True

        self._thread = threading.Thread(target=collector.run, args=(self._stop, keep), daemon=True)
        self._thread.start()

    @property
    def shares(self) -> dict[str, int]:
        """Segments that each broker says something of."""
        return {one.broker: one.segments for one in self.status.brokers}

    @property
    def counted(self) -> set[str]:
        """Topics whose consumers were announced."""
        return set(self.samples.counted)

    def is_whole(self, brokers: int) -> bool:
        """Return True if every segment is seen and at least `brokers` brokers serve some."""
        serving = [one for one in self.shares.values() if one]
        known = self.status.segments_known >= self._topics * SEGMENTS
        return known and len(serving) >= brokers and self.status.coverage == 1.0

    def stop(self) -> None:
        """Stop collecting, and wait for the thread."""
        self._stop.set()
        self._thread.join(10)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), required=False)
def main(folder: Path | None) -> None:
    """Three brokers: one joins, one is killed and comes back. FOLDER keeps their logs; without it they go."""
    with tempfile.TemporaryDirectory() as scratch:
        _in_folder(folder or Path(scratch))


def _in_folder(folder: Path) -> None:
    settings = load_settings()
    jars, pulsar = ensure_jars(settings), ensure_pulsar(settings)
    cluster = PulsarCluster(folder, pulsar, jars.zookeeper)
    try:
        with step("ZooKeeper, a bookie and two brokers"):
            cluster.start(2)
        _run(cluster, pulsar)
    finally:
        cluster.stop()


def _run(cluster: PulsarCluster, jars: Path) -> None:
    first, second = cluster.brokers
    topics = _topics(first)
    with step(f"{TOPICS + 1} topics of {SEGMENTS} segments each"):
        for name in [BUSY, *(topic_name("public", "default", f"t{number}") for number in range(TOPICS))]:
            _done(topics.create_topic(name, SEGMENTS, {}))
    log = cluster.folder / "client.log"
    with keyed_load(jars, first.service_url, BUSY, log, KeyedDemand(200, 100, 1)) as load:
        collecting = Collecting(first.admin_url)
        with step("the collector sees every segment that is loaded, at two brokers"):
            until(lambda: collecting.is_whole(2))
        _print_shares(collecting)
        with step("a third broker joins, and is asked"):
            third = cluster.join()
            until(lambda: third.id in collecting.shares)
        with step("bundles are unloaded, and the third broker gets some"):
            _spread(cluster, lambda: all(collecting.shares.get(one.id, 0) > 0 for one in cluster.brokers))
            until(lambda: collecting.is_whole(3), each=lambda: _look_up(cluster))
        _print_shares(collecting)
        _split_everywhere(cluster, topics, 0)
        _kill(cluster, collecting, second)
        _print_shares(collecting)
        with step(f"{second.name} is started again, and answers"):
            cluster.begin(second)
            until(lambda: any(one.broker == second.id and one.answers for one in collecting.status.brokers))
        _split_everywhere(cluster, topics, 3)
        with step("every message that was acknowledged is received"):
            counts = load.finish()
        print({name: counts.get(name) for name in ("acknowledged", "received", "missing", "errors")})
        assert counts.get("missing") == 0, counts
        collecting.stop()


def _kill(cluster: PulsarCluster, collecting: Collecting, broker: PulsarBroker) -> None:
    """Kill a broker; check that its samples stop and its segments are unknown until served again."""
    served, before = collecting.shares[broker.id], len(collecting.samples.said[broker.id])
    broker.kill()
    at = time.monotonic()
    with step(f"kill -9 of {broker.name}, which served {served} segments: the coverage says so"):
        until(lambda: collecting.status.coverage < 1.0)
    print(f"   {collecting.status.segments_seen} of {collecting.status.segments_known} segments seen")
    with step("others serve its segments"):
        until(lambda: broker.id not in collecting.shares)
        until(lambda: collecting.is_whole(2), each=lambda: _look_up(cluster))
    later = [one for one in collecting.samples.said[broker.id][before:] if one[0] > at + 3]
    assert not later, f"samples in the name of a broker that is dead: {later}"
    print(f"   nothing was said in its name after that; {time.monotonic() - at:.1f} s without a whole view")


def _split_everywhere(cluster: PulsarCluster, topics: ScalableTopics, first: int) -> None:
    """Request a split from each running broker and check that the leader does it, by redirects.

    A broker that answers otherwise while it takes a topic over is asked again, as the executor does, which reads the
    layout first.
    """
    with step("a split of another topic is asked of each broker, whoever leads the topic"):
        for number, broker in enumerate((one for one in cluster.brokers if one.runs), first):
            name = topic_name("public", "default", f"t{number}")
            before = _done(topics.layout(name))
            end, told = time.monotonic() + SPLIT_SECONDS, set[str]()
            while _done(topics.layout(name)).epoch == before.epoch and time.monotonic() < end:
                reply = _topics(broker).split_segment(name, before.active[0].segment_id, "d", before)
                if not isinstance(reply, Answered) and str(reply) not in told:
                    told.add(str(reply))
                    print(f"   {broker.name}: {reply}")
                    time.sleep(1)
            done = _done(topics.layout(name)).epoch - before.epoch
            print(f"   {broker.name}: {'split' if done == 1 else f'not split within {SPLIT_SECONDS:g} s'}")
            assert done == 1, "a decision was not applied, or twice"


def _look_up(cluster: PulsarCluster) -> None:
    """Look up each segment as clients do.

    The look-up assigns an unserved bundle to a broker, and the request for its subscriptions loads the segment there.
    """
    broker = next(one for one in cluster.brokers if one.runs)
    transport, topics = (
        Transport(broker.admin_url, None, user_agent="anabranch-lab", timeout_seconds=5),
        _topics(broker),
    )
    for number in range(TOPICS):
        layout = topics.layout(topic_name("public", "default", f"t{number}"))
        if isinstance(layout, Answered):
            for segment in layout.value.active:
                path = f"public/default/t{number}/{segment.descriptor}"
                transport.exchange("GET", f"/admin/v2/segments/{path}/subscription/none/backlog")
    time.sleep(0.5)


def _spread(cluster: PulsarCluster, enough: Callable[[], bool]) -> None:
    """Unload the namespace until the load balancer has given every broker something."""
    transport = Transport(cluster.brokers[0].admin_url, None, user_agent="anabranch-lab", timeout_seconds=30)
    for _ in range(8):
        transport.exchange("PUT", "/admin/v2/namespaces/public/default/unload")
        end = time.monotonic() + 15
        while time.monotonic() < end and not enough():
            _look_up(cluster)
        if enough():
            return
    raise AssertionError("a broker has got no bundle with segments")


def _topics(broker: PulsarBroker) -> ScalableTopics:
    return ScalableTopics(Transport(broker.admin_url, None, user_agent="anabranch-lab", timeout_seconds=20))


def _done(reply: Any) -> Any:
    assert isinstance(reply, Answered), reply
    return reply.value


def until(condition: Callable[[], bool], seconds: float = 120, each: Callable[[], None] = lambda: None) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        each()
        time.sleep(0.1)


@contextmanager
def step(words: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{words}: {time.monotonic() - began:.1f} s", flush=True)


def _print_shares(collecting: Collecting) -> None:
    print(f"   segments by broker: {collecting.shares}", flush=True)


if __name__ == "__main__":
    main()
