"""Cost of collecting a large Pulsar cluster: calls and bytes from brokers, and the collector's CPU.

`python -m benchmarks.collect [--quick]`. The cluster is a fake of 10,000 topics with three segments each on three
brokers, in a process of its own: it shows which calls come, how often, and how late loads are handed to Kafka after the
broker was done with its computation, with the time of the broker's answer by itself. `--costs` measures what each call
costs a real broker instead (`broker_costs`); later runs multiply both to the broker's CPU.
"""

import multiprocessing
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import click

from anabranch.admin.answers import Answered, Response
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import Transport
from anabranch.collectors.announced import AnnouncedState
from anabranch.collectors.announcements import KafkaRecord
from anabranch.collectors.pulsar.collector import PulsarCollector
from anabranch.collectors.pulsar.reader import BrokerReader
from anabranch.collectors.status import CollectorStatus
from anabranch.local.pulsar.standalone import StandalonePulsar
from anabranch.local.setup import ensure_pulsar
from benchmarks.processes import process_seconds
from benchmarks.record import machine_now, publish, recorded_report
from schemas.settings.root import load_settings

BROKERS, SEGMENTS, PERIOD = 3, 3, 60.0
MEGABYTE = "broker-stats, for each MB"
COSTLY_TOPICS = 100
"""Topics of three segments on the broker whose costs are measured."""


def serve(pipe: Connection, topics: int) -> None:
    """The cluster; answers each question on the pipe with what it has counted."""
    from tests.harness.fake_pulsar import serving_cluster

    with serving_cluster(BROKERS, PERIOD) as cluster:
        for number in range(topics):
            served = cluster.topic(f"topic://acme/shop/t{number}", SEGMENTS, billing=2)
            served.rates = dict.fromkeys(range(SEGMENTS), (10.0 + number, 2e4, 20.0, 4e4))
        for number, broker in enumerate(cluster.brokers):
            broker.began -= number * PERIOD / BROKERS
            broker.compute_on_time()
        pipe.send(cluster.brokers[0].url)
        while pipe.recv():
            for number in range(0, topics, 10):
                topic = cluster.topics[f"topic://acme/shop/t{number}"]
                topic.rates = {id: (rates[0] + 1, *rates[1:]) for id, rates in topic.rates.items()}
            done = {member.name: member.computations for member in cluster.brokers}
            pipe.send((dict(cluster.calls), cluster.bytes_sent, done))


class Counting:
    """Outlet that accepts all records and counts them."""

    def __init__(self) -> None:
        self.waiting = self.samples_waiting = self.lost = self.sent = self.bytes = 0
        self.trouble = None
        self.has_room = True
        self.digests: Callable[[str], tuple[bytes, float]] = lambda _: (b"", 0.0)
        """Of a broker's newest load, and how long its answer took."""
        self.arrived: dict[tuple[str, bytes], tuple[float, float]] = {}
        """When the last samples of each computation came, and how long the broker's answer took."""

    def announce(self, record: KafkaRecord) -> None:
        self.sent += 1
        self.bytes += len(record.value)

    def report(self, record: KafkaRecord) -> None:
        self.bytes += len(record.value)
        digest, took = self.digests(record.key)
        previous = self.arrived.get((record.key, digest))
        if previous is None or time.monotonic() - previous[0] < 1:
            self.arrived[record.key, digest] = (time.monotonic(), took)

    def poll(self) -> None:
        """Nothing waits."""


@click.command()
@click.option("--quick", is_flag=True, help="A short look: fewer sizes, less time.")
@click.option("--costs", is_flag=True, help="Measure what a call costs a real broker (a standalone Pulsar).")
def main(quick: bool, costs: bool) -> None:
    """Measures, prints a table and writes the JSON."""
    recorded = recorded_report("collect")
    if costs:
        recorded["costs"] = {"machine": machine_now(), "ms": broker_costs(300 if quick else 2_000)}
        publish("collect", recorded, quick)
        return
    topics, seconds = (1_000, 20) if quick else (10_000, 150)
    machine = machine_now()
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=serve, args=(other, topics), daemon=True)
    process.start()
    url, out, stop = pipe.recv(), Counting(), threading.Event()
    settings = load_settings(environment={}).collect
    transport = Transport(url, None, user_agent="benchmark", timeout_seconds=30, max_body_bytes=256_000_000)
    collector = PulsarCollector(settings, url, BrokerReader.over(transport), AnnouncedState(1), out)
    statuses: list[CollectorStatus] = [collector.status()]

    def digest_of(name: str) -> tuple[bytes, float]:
        broker = next(candidate for candidate in collector.brokers if candidate.name == name)
        return (broker.load.digest if broker.load else b"", getattr(broker, "read_seconds", 0.0))

    out.digests = digest_of

    def keep(status: CollectorStatus) -> bool:
        statuses[0] = status
        return True

    thread = threading.Thread(target=collector.run, args=(stop, keep), daemon=True)
    thread.start()

    computed: dict[tuple[str, bytes], tuple[float, float]] = {}
    began = time.monotonic()

    def look() -> Look:
        pipe.send(True)
        calls, sent, done = pipe.recv()
        for name, computations in done.items():
            computed.update({(name, digest): (due, ready) for due, ready, digest in computations if due > began})
        used = resource.getrusage(resource.RUSAGE_SELF)
        return calls, sent, used.ru_utime + used.ru_stime, time.monotonic()

    before, rows = look(), []
    for phase in ("first reading", "afterwards"):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(2)
            look()
        after = look()
        lags = late(
            {key: times for key, times in computed.items() if before[3] <= times[1] < after[3] - PERIOD / 4},
            out.arrived,
        )
        known_costs = recorded.get("costs", {}).get("ms", {})
        rows.append(row(phase, before, after, collector, statuses[0], known_costs) | lags)
        before = after
    stop.set()
    thread.join(5)
    pipe.send(False)
    report = recorded | {"machine": machine, "topics": topics, "brokers": BROKERS, "phases": rows}
    publish("collect", report, quick)


Look = tuple[dict[str, int], int, float, float]
"""Calls and bytes that the cluster has counted, CPU seconds of this process, and when."""


def late(
    computed: Mapping[tuple[str, bytes], tuple[float, float]], arrived: Mapping[tuple[str, bytes], tuple[float, float]]
) -> dict[str, object]:
    """Return the delay until each computation's loads reached Kafka, in the order of the computations."""
    arrivals = [arrived.get(key) for key, _ in sorted(computed.items(), key=_by_time)]
    done = [times[1] for times in sorted(computed.values(), key=lambda times: times[1])]
    return {
        "loads with Kafka after s": [
            arrival and round(arrival[0] - ended_at, 2) for arrival, ended_at in zip(arrivals, done, strict=True)
        ],
        "of that the broker's answers": [arrival and round(arrival[1], 2) for arrival in arrivals],
    }


def _by_time(computation: tuple[tuple[str, bytes], tuple[float, float]]) -> float:
    return computation[1][1]


def row(
    phase: str,
    before: Look,
    after: Look,
    collector: PulsarCollector,
    status: CollectorStatus,
    costs: Mapping[str, float],
) -> dict[str, object]:
    """One phase, per broker and second; `costs` as of `broker_costs`, empty if they were not measured."""
    took = after[3] - before[3]
    calls = {name: count - before[0].get(name, 0) for name, count in after[0].items()}
    loads = calls.get("broker-stats", 0)
    megabytes = (
        loads
        * sum(len(broker.load.loads) and broker.load.size for broker in collector.brokers if broker.load)
        / BROKERS
        / 1e6
    )
    milliseconds = sum(costs.get(name, 0.0) * count for name, count in calls.items())
    cpu = (milliseconds + costs.get(MEGABYTE, 0.0) * megabytes) / 1000 / took / BROKERS
    return {
        "phase": phase,
        "calls/s a broker": round(sum(calls.values()) / took / BROKERS, 1),
        "MB/s a broker": round((after[1] - before[1]) / 1e6 / took / BROKERS, 3),
        "loads read a broker": round(loads / BROKERS, 1),
        **({"broker's CPU": f"{cpu:.2%}"} if costs.keys() >= calls.keys() else {}),
        "collector's CPU": f"{(after[2] - before[2]) / took:.1%}",
        "coverage": f"{status.coverage:.1%}",
        "topics known": status.topics,
        "oldest consumers s": round(status.consumers_age_seconds),
        "load lag as it says s": round(max((broker.lag_seconds or 0.0 for broker in status.brokers), default=0.0), 2),
    }


def broker_costs(calls: int) -> dict[str, float]:
    """Measure a real standalone broker's CPU time for each kind of call, in milliseconds.

    Keys are the fake's names of calls. Each kind is called as often to warm up, then `calls` times; the idle CPU use
    is subtracted.
    """
    jars = ensure_pulsar(load_settings())
    with tempfile.TemporaryDirectory() as folder:
        pulsar = StandalonePulsar(Path(folder), jars)
        pulsar.start()
        try:
            transport = Transport(pulsar.admin_url, None, user_agent="benchmark", timeout_seconds=30)
            topics = ScalableTopics(transport)
            for number in range(COSTLY_TOPICS):
                reply = topics.create_topic(f"topic://public/default/t{number}", SEGMENTS, {})
                assert isinstance(reply, Answered), reply
            time.sleep(2)  # so that the rates of all segments are computed
            return _costs(pulsar, transport, calls)
        finally:
            pulsar.stop()


def _costs(pulsar: StandalonePulsar, transport: Transport, calls: int) -> dict[str, float]:
    paths = {
        "scalable-5": "/admin/v2/scalable/public/default/t{}/stats",
        "scalable-4": "/admin/v2/scalable/public/default/t{}",
        "scalable": "/admin/v2/scalable/public/default",
        "brokers": "/admin/v2/brokers",
        "namespaces": "/admin/v2/namespaces/public",
        "tenants": "/admin/v2/tenants",
        "broker-stats": "/admin/v2/broker-stats/topics",
    }
    assert pulsar.process is not None
    pid = pulsar.process.pid

    def spend(path: str, count: int) -> tuple[float, float, int]:
        """CPU and other seconds, and bytes of the last answer."""
        used, began, size = process_seconds(pid), time.monotonic(), 0
        for number in range(count):
            answer = transport.exchange("GET", path.format(number % COSTLY_TOPICS))
            assert isinstance(answer, Response), answer
            assert answer.status == 200, answer
            size = len(answer.body)
        return process_seconds(pid) - used, time.monotonic() - began, size

    for path in paths.values():
        spend(path, calls)
    used, began = process_seconds(pid), time.monotonic()
    time.sleep(10)
    idle = (process_seconds(pid) - used) / (time.monotonic() - began)
    costs = {}
    for name, path in paths.items():
        cpu, took, size = spend(path, calls)
        each = max(0.0, cpu - idle * took) / calls * 1000
        if name == "broker-stats":
            costs[name], costs[MEGABYTE] = 0.0, round(each / (size / 1e6), 3)
        else:
            costs[name] = round(each, 3)
    return costs


if __name__ == "__main__":
    main()
