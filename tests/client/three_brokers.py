"""Three Kafka brokers with three replicas, two of which must have a write, behind proxies that can cut connections."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

from anabranch.local.broker import EmbeddedBroker, free_ports, new_cluster_id
from tests.client.cut_proxy import CutProxies

BROKERS = 3

_PROPERTIES = """\
node.id={id}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},INTERNAL://127.0.0.1:{internal},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{proxy},INTERNAL://127.0.0.1:{internal}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=INTERNAL
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
"""


class ClusterBroker(EmbeddedBroker):
    """One of them; clients reach it by its proxy."""

    START_SECONDS = 240.0

    def __init__(self, folder: Path, jars: Path, id: int) -> None:
        super().__init__(folder, jars)
        self.id = id
        self.internal, self.proxy = free_ports(2)
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

    def more_properties(self) -> str:
        return _PROPERTIES.format(
            id=self.id,
            voters=self.voters,
            port=self.port,
            internal=self.internal,
            controller=self._controller_port,
            proxy=self.proxy,
        )


class ThreeBrokers:
    """The cluster; like one broker, but `kill` kills a random one of them."""

    def __init__(self, folder: Path, jars: Path, chance: random.Random) -> None:
        self._chance = chance
        self._brokers = [ClusterBroker(folder / f"kafka-{id}", jars, id) for id in range(1, BROKERS + 1)]
        self._proxies = CutProxies({broker.proxy: broker.port for broker in self._brokers})
        cluster_id = new_cluster_id()
        for broker in self._brokers:
            broker.cluster_id = cluster_id
            broker.voters = ",".join(each.voter for each in self._brokers)
        self._dead: list[ClusterBroker] = []

    @property
    def bootstrap(self) -> str:
        """Addresses for clients."""
        return ",".join(f"127.0.0.1:{broker.proxy}" for broker in self._brokers)

    def launch(self) -> None:
        """Start all."""
        self._proxies.start()
        for broker in self._brokers:
            broker.launch()
        for broker in self._brokers:
            broker.wait_until_serving()

    def kill(self) -> None:
        """Kill one."""
        self._dead = [self._chance.choice(self._brokers)]
        self._dead[0].kill()

    def start(self) -> None:
        """Start the one that was killed, and wait until it serves."""
        for broker in self._dead:
            broker.start()

    def cut(self) -> None:
        """Cut all connections of clients and of the Anabranch controller."""
        self._proxies.cut()

    def close(self) -> None:
        """Kill all."""
        for broker in self._brokers:
            broker.kill()
        self._proxies.close()
