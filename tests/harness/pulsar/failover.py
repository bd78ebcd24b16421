"""`python -m tests.harness.pulsar.failover [FOLDER]`: failover of Pulsar's own scaler beside a collector.

Runs topics with clients on three real brokers, then a collector, and kills the broker that leads a topic with kill -9.
Afterwards the cluster's scaler has to split.

Stage: by hand; it takes minutes, so it is no test. It shows that a collector leaves the failover of
Pulsar's scaler as it is.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import click

from anabranch.admin.answers import Answered
from anabranch.admin.cluster import ClusterAdmin
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import Transport
from anabranch.collectors.pulsar.brokers import best_broker
from anabranch.local.pulsar.load import KeyedDemand, keyed_load
from anabranch.local.setup import ensure_jars, ensure_pulsar
from schemas.ids import topic_name
from schemas.metadata import AutoScalePolicyOverride
from schemas.settings.root import load_settings
from tests.harness.pulsar.brokers import Collecting, step, until
from tests.harness.pulsar.cluster import PulsarBroker, PulsarCluster

TOPICS = [topic_name("public", "default", f"orders-{number}") for number in range(4)]
RATE = 60
"""Messages a second of each topic."""
SPLIT_SECONDS = 90.0
"""Longest time that the scaler may take after its leader is gone: clients reconnect, it reads the load, it looks."""
SETTINGS: dict[str, object] = {
    "scalableTopicAutoScaleEnabled": True,
    "scalableTopicAutoScaleIntervalSeconds": 3,
    "scalableTopicLoadReportIntervalSeconds": 2,
    "scalableTopicSplitCooldownSeconds": 5,
}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option(
    "--consumers",
    type=click.Choice(["attached", "registered", "none"]),
    default="attached",
    show_default=True,
    help="How the collector counts them; none: no collector runs, to compare.",
)
def main(folder: Path | None, consumers: str) -> None:
    """Kill the leader while a collector runs, and wait for splits. FOLDER keeps the brokers' logs."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = load_settings()
        jars, pulsar = ensure_jars(settings), ensure_pulsar(settings)
        cluster = PulsarCluster(folder or Path(scratch), pulsar, jars.zookeeper, settings=SETTINGS)
        try:
            with step("ZooKeeper, a bookie and three brokers"):
                cluster.start(3)
            _run(cluster, pulsar, consumers)
        finally:
            cluster.stop()


def _run(cluster: PulsarCluster, jars: Path, consumers: str) -> None:
    first = cluster.brokers[0]
    anyone = "pulsar://" + ",".join(one.service_url.partition("://")[2] for one in cluster.brokers)
    with ExitStack() as clients:
        for topic in TOPICS:
            _done(_topics(first).create_topic(topic, 1, {}))
        loads = [
            clients.enter_context(
                keyed_load(jars, anyone, topic, cluster.folder / f"client-{number}.log", KeyedDemand(RATE, 40, 1))
            )
            for number, topic in enumerate(TOPICS)
        ]
        with step(f"{len(TOPICS)} topics have producers and consumers"):
            until(lambda: all(load.counts.get("received", 0) > RATE for load in loads))
        leaders = {topic: _leader(first, topic) for topic in TOPICS}
        asked = {topic: best_broker(topic, [one.id for one in cluster.brokers]) for topic in TOPICS}
        for topic in TOPICS:
            print(f"   {topic} is led by {leaders[topic]}; a hash of the topic names {asked[topic]}")
        apart = [topic for topic in TOPICS if asked[topic] != leaders[topic]]
        assert apart, "every topic happens to be led by the broker that its hash names: run it again"
        collecting = None
        if consumers != "none":
            collecting = Collecting(first.admin_url, consumers, len(TOPICS))
            with step(f"a collector reads the cluster (consumers: {consumers})"):
                until(lambda: collecting.status.topics == len(TOPICS) and collecting.status.coverage == 1.0)
                until(lambda: collecting.counted >= set(TOPICS))
        dead = next(one for one in cluster.brokers if one.id == leaders[apart[0]])
        led = [topic for topic in TOPICS if leaders[topic] == dead.id]
        dead.kill()
        alive = next(one for one in cluster.brokers if one.runs)
        with step(f"kill -9 of {dead.name}, which led {', '.join(led)}: it is listed no more"):
            until(lambda: _has_left(alive, dead))
        for topic in led:
            hot = AutoScalePolicyOverride(split_msg_rate_in_threshold=RATE / 3, merge_msg_rate_in_threshold=1)
            _done(_topics(alive).set_policy(topic, hot))
        stuck = _await_splits(alive, led)
        if collecting is not None:
            collecting.stop()
        assert not stuck, f"not split within {SPLIT_SECONDS:g} s, although three times over the threshold: {stuck}"


def _await_splits(alive: PulsarBroker, topics: list[str]) -> list[str]:
    """Wait until each topic has been split by the cluster's own scaler; the topics that were not."""
    began, waiting = time.monotonic(), list(topics)
    while waiting and time.monotonic() - began < SPLIT_SECONDS:
        for topic in list(waiting):
            layout = _topics(alive).layout(topic)
            if isinstance(layout, Answered) and len(layout.value.active) > 1:
                print(f"   {topic}: split by Pulsar's scaler after {time.monotonic() - began:.1f} s", flush=True)
                waiting.remove(topic)
        time.sleep(0.5)
    for topic in waiting:
        print(f"   {topic}: not split; its leader: {_leader(alive, topic)}", flush=True)
    return waiting


def _leader(broker: PulsarBroker, topic: str) -> str:
    reply = _topics(broker).leader(topic)
    return reply.value if isinstance(reply, Answered) else str(reply)


def _has_left(alive: PulsarBroker, dead: PulsarBroker) -> bool:
    """Return True if the cluster has noticed that a broker is dead."""
    reply = ClusterAdmin(_transport(alive)).brokers()
    return isinstance(reply, Answered) and dead.id not in reply.value


def _transport(broker: PulsarBroker) -> Transport:
    return Transport(broker.admin_url, None, user_agent="anabranch-lab", timeout_seconds=20)


def _topics(broker: PulsarBroker) -> ScalableTopics:
    return ScalableTopics(_transport(broker))


def _done(reply: object) -> None:
    assert isinstance(reply, Answered), reply


if __name__ == "__main__":
    main()
