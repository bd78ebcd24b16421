"""Embedded Kafka broker: one KRaft node on loopback, run from verified jars in its own folder.

Its data survives kill -9 and restarts. Ports are chosen once per process unless they are set.
"""

import base64
import os
import socket
import subprocess
import uuid
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from random import SystemRandom

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from anabranch.local.embedded import EmbeddedServer
from runtime.java_home import SetupError, archive_options, find_java
from schemas.kafka.connection import KafkaConnection, SecurityProtocol
from schemas.kafka.topics import KAFKA_TOPICS, KafkaTopic
from schemas.settings.root import without_secrets

_SERVER_PORTS = range(20_000, 32_000)
_CHOSEN_PORTS = set[int]()
"""Ports that this process has chosen; their servers may not listen yet."""
_FLAGS = [
    "-Xms64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
]


def free_ports(count: int) -> list[int]:
    """Return loopback ports that are free at this moment.

    They lie below the ephemeral ports of Linux and macOS, so no outgoing connection can take one before its server
    listens.
    """
    with ExitStack() as held:
        ports: list[int] = []
        for port in SystemRandom().sample(_SERVER_PORTS, len(_SERVER_PORTS)):
            listener = held.enter_context(socket.socket())
            with suppress(OSError):
                if port not in _CHOSEN_PORTS:
                    listener.bind(("127.0.0.1", port))
                    ports.append(port)
            if len(ports) == count:
                _CHOSEN_PORTS.update(ports)
                return ports
    raise SetupError(f"of the ports {_SERVER_PORTS[0]} to {_SERVER_PORTS[-1]}, fewer than {count} are free")


def check_port_is_free(port: int, user: str) -> None:
    """Raise `SetupError` when a requested loopback port is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SetupError(
                f"port {port} for {user} is taken: stop the process that uses it, or set another (0 = a free one)"
            ) from error


class EmbeddedBroker(EmbeddedServer):
    """Kafka broker process; its `bootstrap` is known from the start and outlives restarts."""

    NAME, LOG = "the Kafka broker", "broker.log"

    def __init__(self, folder: Path, jars: Path, heap: str = "256m", port: int = 0) -> None:
        """`folder` holds data, configuration and log; `port` 0 means a free one."""
        super().__init__(folder, jars, heap)
        if port:
            check_port_is_free(port, "the embedded Kafka broker")
        free = free_ports(2)
        self.port, self._controller_port = port or free[0], free[1]

    protocol: SecurityProtocol = "PLAINTEXT"
    """Protocol of its listener."""
    format_options: Sequence[str] = ()
    """Options for Kafka's tool that formats the folder."""
    cluster_id: str | None = None
    """None: chosen when the folder is formatted."""

    def extra_properties(self) -> str:
        """Return further lines of the configuration, for a secured broker; each ends with a line break."""
        return ""

    @property
    def bootstrap(self) -> str:
        """`host:port` of the broker."""
        return f"127.0.0.1:{self.port}"

    @property
    def connection(self) -> KafkaConnection:
        """Connection settings for this broker."""
        return KafkaConnection(self.bootstrap)

    def prepare(self) -> list[str]:
        """Write the configuration, format a new folder, and return the command that runs the broker."""
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        ports = _PORTS.format(port=self.port, controller=self._controller_port, protocol=self.protocol)
        properties.write_text(f"{ports}log.dirs={self.folder / 'data'}\n{_PROPERTIES}{self.extra_properties()}")
        properties.chmod(0o600)
        if not (self.folder / "data" / "meta.properties").is_file():
            options = ["-t", self.cluster_id or new_cluster_id(), "-c", str(properties), *self.format_options]
            run = subprocess.run(
                self._java("kafka.tools.StorageTool", "format", *options),
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                check=False,
                env=without_secrets(os.environ),
            )
            if run.returncode:
                raise SetupError(
                    f"the broker's folder {self.folder} could not be formatted: {run.stdout[-500:]}{run.stderr[-500:]}"
                )
        return self._java("kafka.Kafka", str(properties))

    def serves(self) -> bool:
        """Return True if the broker answers clients now."""
        return is_serving(self.connection)

    def _java(self, main: str, *arguments: str) -> list[str]:
        options = [f"-Xmx{self._heap}", *_FLAGS, *archive_options(self._jars)]
        return [find_java(), *options, "-cp", f"{self._jars}/*", main, *arguments]


def is_serving(kafka: KafkaConnection) -> bool:
    """Return True if the first bootstrap broker answers within a second."""
    host, _, port = kafka.bootstrap.partition(",")[0].rpartition(":")
    try:
        socket.create_connection((host, int(port)), 0.5).close()
    except OSError:
        return False
    admin = AdminClient(kafka.librdkafka({"log_level": 0}))
    try:
        return bool(admin.list_topics(timeout=1).brokers)
    except KafkaException:
        return False


def create_topics(kafka: KafkaConnection, topics: Iterable[KafkaTopic] = KAFKA_TOPICS) -> None:
    """Create the missing topics. Raises `KafkaException`."""
    admin = AdminClient(kafka.librdkafka())
    wanted = [NewTopic(topic.name, topic.partitions, 1, config=topic.config) for topic in topics]
    for future in admin.create_topics(wanted, operation_timeout=20).values():
        try:
            future.result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def new_cluster_id() -> str:
    """Return 16 random bytes, url-safe; never with a leading `-`, which Kafka's tool takes for an option."""
    while True:
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not identity.startswith("-"):
            return identity


_PORTS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={protocol}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={protocol}://127.0.0.1:{port}
listener.security.protocol.map={protocol}:{protocol},CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name={protocol}
"""
_PROPERTIES = """\
num.partitions=1
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
# Segments' subscriptions are positions of groups without members: they stay.
offsets.retention.minutes=2147483647
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
# A broker that was killed may register again only when its old session has run out: 9 s by default.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
num.network.threads=2
num.io.threads=4
background.threads=2
log.cleaner.dedupe.buffer.size=2097152
"""
