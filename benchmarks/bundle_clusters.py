"""Three-broker clusters under load for the live benchmarks of bundles, and our balancer on them.

Brokers of one machine all report the usage of the machine, so the collector puts a broker's share of the messages in
the place of its CPU.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean, pstdev
from types import MappingProxyType
from typing import cast

import click

from anabranch.admin.answers import Answered
from anabranch.admin.bundles import BundleAdmin
from anabranch.admin.cluster import ClusterAdmin
from anabranch.admin.transport import Transport
from anabranch.collectors.announcements import KafkaRecord
from anabranch.collectors.bundles import BundleRounds, Unread, read_bundle_stats
from anabranch.collectors.publisher import RecordPublisher
from anabranch.local.broker import EmbeddedBroker, create_topics
from anabranch.local.setup import ensure_jar_folder, ensure_jars, ensure_pulsar
from lake.tables import create_lake
from runtime.java_home import find_java
from schemas.bundles import ResourceUsage
from schemas.kafka.broker_messages import LocalBrokerReport, Report
from schemas.kafka.messages import Source
from schemas.kafka.topics import BROKER_EVENTS, BROKER_LOAD, BUNDLE_TOPICS, KAFKA_TOPICS
from schemas.settings.root import load_settings
from tests.harness.pulsar.cluster import CLUSTER, PulsarCluster

NAMESPACES, BUNDLES, TOPICS = ("public/north", "public/south", "public/west"), 4, 6
RATE, HOT_RATE = 5, 40
"""Messages a second of each topic, and what is added to those of one namespace at a time."""
CAPACITY = (len(NAMESPACES) * RATE + HOT_RATE) * TOPICS
"""A broker with all of the load is full."""
LOOK_S, RATES_S, ROUND_S, PATIENCE_S = 0.5, 5.0, 60.0, 240.0


class BalanceWatch(threading.Thread):
    """Owners and rates of a cluster over time."""

    def __init__(self, cluster: PulsarCluster, transport: Transport) -> None:
        super().__init__(daemon=True)
        self._cluster, self._bundles, self._admin = cluster, BundleAdmin(transport), ClusterAdmin(transport)
        self._ended, self._owners = threading.Event(), dict[str, str]()
        self.unloads, self.unserved_s, self.spreads = 0, 0.0, list[tuple[float, float]]()

    def run(self) -> None:
        """Look until `end`."""
        before, rated_at = time.monotonic(), 0.0
        while not self._ended.wait(LOOK_S):
            now, owners = time.monotonic(), self.owners()
            if owners is not None:
                self.unloads += sum(self._owners.get(bundle, owner) != owner for bundle, owner in owners.items())
                self.unserved_s += (now - before) * len(self._owners.keys() - owners.keys())
                self._owners |= owners
            before = now
            if now - rated_at >= RATES_S:
                rated_at = now
                self._rate(now)

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()
        self.join()

    def owners(self) -> dict[str, str] | None:
        """Return broker by bundle; None while a broker does not answer."""
        owners = dict[str, str]()
        for broker in self._cluster.brokers:
            reply = self._bundles.owned(CLUSTER, broker.id)
            if not isinstance(reply, Answered):
                return None
            owners |= {bundle: broker.id for bundle in reply.value if bundle.rpartition("/")[0] in NAMESPACES}
        return owners

    def _rate(self, now: float) -> None:
        rates = []
        for broker in self._cluster.brokers:
            way = self._admin.at_broker(broker.id)
            reply = ClusterAdmin(way).broker_stats() if isinstance(way, Transport) else way
            if not isinstance(reply, Answered):
                return
            rates.append(sum(stats.msg_rate_in for stats in read_bundle_stats(reply.value).values()))
        if mean := fmean(rates):
            self.spreads.append((now, pstdev(rates) / mean))


@contextmanager
def program(command: list[str], log: Path | None = None) -> Iterator[None]:
    """A program until the end of the block."""
    with open(log or os.devnull, "ab") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def as_share(report: Report) -> Report:
    """Put a broker's share of all messages in the place of its CPU."""
    assert isinstance(report, LocalBrokerReport)
    rate = sum(stats.msg_rate_in for stats in report.data.last_stats.values())
    idle = ResourceUsage(usage=0.0, limit=100.0)
    data = report.data.model_copy(
        update={
            "cpu": ResourceUsage(usage=100 * min(rate / CAPACITY, 1.0), limit=100.0),
            "memory": idle,
            "direct_memory": idle,
            "bandwidth_in": idle,
            "bandwidth_out": idle,
        }
    )
    return report.model_copy(update={"data": data})


class OurCollector(threading.Thread):
    """Rounds of the collector, sent to Kafka as `anabranch serve collector bundles` does."""

    def __init__(self, transport: Transport, broker: EmbeddedBroker, settings: Mapping[str, str]) -> None:
        super().__init__(daemon=True)
        self._rounds, self._broker = BundleRounds(transport, {"profile": "default"} | dict(settings)), broker
        self._ended = threading.Event()

    def run(self) -> None:
        """Collect until `end`."""
        publisher = RecordPublisher(self._broker.connection, lambda record: None)
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                for message in self._rounds.read(time.time_ns() // 1_000_000):
                    is_load = hasattr(message, "last_update")
                    reported = as_share(cast(Report, message)) if is_load else message
                    topic = cast(Source, BROKER_LOAD.name if is_load else BROKER_EVENTS.name)
                    (publisher.report if is_load else publisher.announce)(
                        KafkaRecord(topic, reported.cluster, reported.to_json().encode())
                    )
            except (Unread, ValueError) as error:
                click.echo(f"a round is left out: {error}", err=True)
            while not self._ended.wait(1.0) and time.monotonic() - began < ROUND_S:
                publisher.poll()
        publisher.close(3.0)

    def end(self) -> None:
        """Stop collecting."""
        self._ended.set()
        self.join()


def balance_by_us(
    folder: Path, transport: Transport, stack: ExitStack, settings: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Start Kafka, job, executor and collector; when the job is up, return how our commands begin."""
    broker = EmbeddedBroker(folder / "kafka", ensure_jars(load_settings(), note).kafka, "256m")
    broker.start()
    stack.callback(broker.stop)
    create_topics(broker.connection, (*KAFKA_TOPICS, *BUNDLE_TOPICS))
    file, lake = folder / "live.toml", folder / "lake"
    file.write_text(
        f'[kafka]\nbootstrap = "{broker.bootstrap}"\n[lake]\npath = "{lake}"\n[stream]\n'
        f'checkpoint = "{folder}/checkpoint"\n[controller]\nurl = "{transport.url}"\n[bundles]\nenabled = true\n'
        f'[local]\nfolder = "{folder}"\n'
    )
    create_lake(str(lake))
    ours = [sys.executable, "-m", "anabranch", "--config", str(file)]
    stack.enter_context(program([*ours, "serve", "stream"], folder / "job.log"))
    stack.enter_context(program([*ours, "serve", "executor", "--mode", "act"], folder / "executor.log"))
    collector = OurCollector(transport, broker, settings)
    collector.start()
    stack.callback(collector.end)
    end = time.monotonic() + PATIENCE_S
    while not any((lake / "batches").glob("**/*.parquet")):
        if time.monotonic() > end:
            raise SystemExit(f"the job did not come up: {folder / 'job.log'}")
        time.sleep(1)
    return ours


def note(line: str) -> None:
    """Print a line of progress."""
    click.echo(line, err=True)


def start_cluster(
    folder: Path, settings: Mapping[str, object], stack: ExitStack
) -> tuple[PulsarCluster, Transport, list[str]]:
    """Start three brokers with the namespaces; return them, their interface, and the load's command."""
    own = load_settings()
    cluster = PulsarCluster(
        folder / "pulsar",
        ensure_jar_folder(own, "pulsar-lts", note),
        ensure_jars(own, note).zookeeper,
        "256m",
        settings=settings,
    )
    stack.callback(cluster.stop)
    cluster.start(3)
    transport = Transport(cluster.brokers[0].admin_url, None, user_agent="anabranch-benchmark", timeout_seconds=30)
    stack.callback(transport.close)
    for namespace in NAMESPACES:
        body = json.dumps({"bundles": {"numBundles": BUNDLES}})
        transport.exchange("PUT", f"/admin/v2/namespaces/{namespace}", body=body)
    java = [find_java(), "-Xmx96m", "-Djava.net.preferIPv4Stack=true", "-cp", f"{ensure_pulsar(own, note)}/*"]
    return cluster, transport, [*java, "anabranch.pulsar.PlainLoad", cluster.brokers[0].service_url]
