"""Three Kafka brokers with three replicas, two of which must have a write, behind links that can be cut."""

from __future__ import annotations

import random
import socket
import time
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

from anabranch.local.broker import EmbeddedBroker, free_ports, new_cluster_id
from runtime.java_home import SetupError
from tests.harness.chaos.nodes import Link

BROKERS, CUT_SECONDS = 3, 3.0

FLUSHING = """\
# A killed broker reads everything again that it has not flushed, all gigabytes of a long run.
log.flush.interval.ms=10000
log.flush.scheduler.interval.ms=5000
log.flush.offset.checkpoint.interval.ms=10000
"""
_PROPERTIES = """\
node.id={id}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},INTERNAL://127.0.0.1:{internal},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://{link},INTERNAL://127.0.0.1:{internal}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=INTERNAL
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
# Three of them share a machine: a slow one must not lose its leaderships, nor the quorum its leader.
broker.session.timeout.ms=9000
controller.quorum.fetch.timeout.ms=8000
controller.quorum.election.timeout.ms=4000
"""


class ClusterBroker(EmbeddedBroker):
    """One of them; clients reach it by its link."""

    START_SECONDS = 240.0

    def __init__(self, folder: Path, jars: Path, id: int) -> None:
        super().__init__(folder, jars, heap="512m")
        self.id = id
        (self.internal,) = free_ports(1)
        self.link = Link(self.bootstrap)
        self.voters = ""

    @property
    def voter(self) -> str:
        """Return its address in the quorum of controllers."""
        return f"{self.id}@127.0.0.1:{self._controller_port}"

    def serves(self) -> bool:
        """Return whether it has joined the cluster; three of them on one machine are slow."""
        with suppress(OSError, KafkaException):
            socket.create_connection(("127.0.0.1", self.port), 0.5).close()
            admin = AdminClient(self.connection.librdkafka({"log_level": 0}))
            return self.id in admin.list_topics(timeout=10).brokers
        return False

    def extra_properties(self) -> str:
        return FLUSHING + _PROPERTIES.format(
            id=self.id,
            voters=self.voters,
            port=self.port,
            internal=self.internal,
            controller=self._controller_port,
            link=self.link.address,
        )


class ThreeBrokers:
    """The cluster; like one broker, but `kill` kills a random one of them."""

    def __init__(self, folder: Path, jars: Path, chance: random.Random) -> None:
        self._chance = chance
        self._brokers = [ClusterBroker(folder / f"kafka-{id}", jars, id) for id in range(1, BROKERS + 1)]
        cluster_id = new_cluster_id()
        for broker in self._brokers:
            broker.cluster_id = cluster_id
            broker.voters = ",".join(each.voter for each in self._brokers)
        self._dead: list[ClusterBroker] = []

    @property
    def bootstrap(self) -> str:
        """Addresses for clients."""
        return ",".join(broker.link.address for broker in self._brokers)

    def launch(self) -> None:
        """Start all."""
        for broker in self._brokers:
            broker.launch()
        for broker in self._brokers:
            broker.wait_until_serving()

    def kill(self) -> None:
        """Kill one."""
        self._dead = [self._chance.choice(self._brokers)]
        self._dead[0].kill()

    def start(self) -> None:
        """Start the one that was killed, and wait until it serves. Raises `SetupError` for others that have ended."""
        for broker in self._dead:
            broker.launch()
        ended = [broker for broker in self._brokers if broker.process and broker.process.poll() is not None]
        for broker in ended:
            broker.launch()
        for broker in (*self._dead, *ended):
            broker.wait_until_serving()
        if ended:
            raise SetupError(f"brokers ended by themselves: {', '.join(str(broker.log) for broker in ended)}")

    def cut(self) -> None:
        """Lose what clients and the Anabranch controller send for a while, then close their connections."""
        for broker in self._brokers:
            broker.link.cut()
        time.sleep(CUT_SECONDS)
        for broker in self._brokers:
            broker.link.mend()

    def close(self) -> None:
        """Kill all."""
        for broker in self._brokers:
            broker.kill()
            broker.link.close()
