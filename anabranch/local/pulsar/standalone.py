"""Standalone Pulsar 5 on loopback, from the checked jars: broker and bookie in one process.

It is unmodified: only its configuration is ours. Data survives kill -9 and later starts, also with other ports. Rates,
which it works out every 60 s by default, come every second. Its own auto-scaler is off unless it is asked for, so that
nobody else splits and merges.
"""

from collections.abc import Mapping
from pathlib import Path

from anabranch.admin.answers import Answered, Response
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import Transport
from anabranch.local.broker import check_port_is_free, free_ports
from anabranch.local.embedded import EmbeddedServer
from anabranch.local.pulsar.jvm import command, loopback, write_properties


class StandalonePulsar(EmbeddedServer):
    """Standalone Pulsar process; `admin_url` and `service_url` outlive restarts."""

    NAME, LOG = "Pulsar", "pulsar.log"
    START_SECONDS, STOP_SECONDS = 180.0, 30.0
    ADVERTISED = "127.0.0.1"

    def __init__(
        self,
        folder: Path,
        jars: Path,
        heap: str = "512m",
        web_port: int = 0,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """`folder` holds data, configuration and log; `jars` is the folder of `anabranch.local.setup.ensure_pulsar`.

        `settings` are lines of broker.conf over ours, such as `{"scalableTopicAutoScaleEnabled": True}`. `web_port` 0
        means a free one.
        """
        super().__init__(folder, jars, heap)
        if web_port:
            check_port_is_free(web_port, "Pulsar's admin interface")
        self.port, free = free_ports(2)
        self.web_port = web_port or free
        self._settings = dict(settings or {})

    @property
    def admin_url(self) -> str:
        """Of the admin REST interface."""
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def service_url(self) -> str:
        """Of producers and consumers."""
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def jars(self) -> Path:
        """The folder of its jars."""
        return self._jars

    def prepare(self) -> list[str]:
        """Write the configuration, return Pulsar's command. Raises `SetupError` without a loopback interface."""
        configuration = self.folder / "standalone.conf"
        write_properties(configuration, self._properties())
        return command(
            self.folder,
            self._jars,
            self._heap,
            "org.apache.pulsar.PulsarStandaloneStarter",
            "--config",
            str(configuration),
            "--metadata-dir",
            str(self.folder / "metadata"),
            "--bookkeeper-dir",
            str(self.folder / "bookkeeper"),
            "--advertised-address",
            self.ADVERTISED,
            "--no-functions-worker",
            "--no-stream-storage",
        )

    def serves(self) -> bool:
        """Return True if Pulsar answers clients and has the namespace `public/default`."""
        transport = self._transport()
        topics = ScalableTopics(transport)
        try:
            ready = transport.exchange("GET", "/admin/v2/brokers/ready")
            if not isinstance(ready, Response) or ready.status != 200:
                return False
            reply = topics.list_namespaces("public")
            return isinstance(reply, Answered) and "public/default" in reply.value
        finally:
            topics.close()

    def _transport(self) -> Transport:
        return Transport(self.admin_url, None, user_agent="anabranch-lab", timeout_seconds=5)

    def _properties(self) -> dict[str, object]:
        return {
            **_PROPERTIES,
            "brokerServicePort": self.port,
            "webServicePort": self.web_port,
            "listeningInterface": loopback(),
            **self._settings,
        }


_PROPERTIES: dict[str, object] = {
    "clusterName": "standalone",
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "numIOThreads": 2,
    "numHttpServerThreads": 8,
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
    "managedLedgerCacheSizeMB": 32,
    "bookkeeperNumberOfChannelsPerBookie": 2,
    # The bookie. Ledgers name it by its identity, so that it may come back with another port.
    "bookieId": "bookie-0",
    "allowLoopback": True,
    "journalSyncData": False,
    "dbStorage_writeCacheMaxSizeMb": 32,
    "dbStorage_readAheadCacheMaxSizeMb": 32,
    "dbStorage_rocksDB_blockCacheSize": 16_777_216,
    "diskUsageThreshold": 0.99,
    "diskUsageWarnThreshold": 0.99,
    "systemTopicEnabled": True,
    "topicLevelPoliciesEnabled": True,
    "transactionCoordinatorEnabled": False,
    "webSocketServiceEnabled": False,
    "loadBalancerEnabled": False,
    "defaultNumberOfNamespaceBundles": 4,
    # Rates are worked out, and broker-stats are refreshed, so often (60 and 60 by default).
    "statsUpdateFrequencyInSecs": 1,
    "statsUpdateInitialDelayInSecs": 1,
    "scalableTopicsEnabled": True,
    "scalableTopicAutoScaleEnabled": False,
    "scalableTopicAutoScaleIntervalSeconds": 5,
    "scalableTopicLoadReportIntervalSeconds": 2,
}
