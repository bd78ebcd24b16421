"""Pulsar 5 or 4.0.7 cluster on loopback, from the checked jars; brokers start, stop and die singly.

Stage: the real cluster of `brokers`, with one ZooKeeper and one bookie. Everything is unmodified; only the
configuration is ours. Data survives kill -9 and later starts of a broker, which keeps its ports.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from anabranch.admin.answers import Response
from anabranch.admin.transport import Transport
from anabranch.local.broker import free_ports
from anabranch.local.processes import tethered
from anabranch.local.pulsar.jvm import command, loopback, write_properties
from runtime.java_home import SetupError
from schemas.settings.root import without_secrets
from tests.harness.zookeeper import EmbeddedZooKeeper

_START_SECONDS = 180
_STOP_SECONDS = 30
_FLAGS = ("-Djava.net.preferIPv4Stack=true",)
"""Else BookKeeper takes an address of IPv6 for its own, and ends."""


class _Program:
    """One JVM."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The program's log file."""
        return self.folder / f"{self.name}.log"

    def launch(self, prepared: list[str]) -> None:
        """Start the program without waiting."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                tethered(prepared),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
                env=without_secrets(os.environ),
            )

    def failed(self) -> SetupError:
        """Return the error of a failed start, with the end of the log."""
        return SetupError(f"{self.name} did not start; the end of {self.log}: {self.log.read_text()[-800:]}")

    @property
    def runs(self) -> bool:
        """True until the process ends; False if it was never started."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """End the program with SIGKILL."""
        if self.process is not None and self.runs:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Stop the program cleanly."""
        if self.process is not None and self.runs:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()


class PulsarBroker(_Program):
    """One broker of a cluster."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        self.port, self.web_port = free_ports(2)

    @property
    def id(self) -> str:
        """Broker id in its cluster's list."""
        return f"127.0.0.1:{self.web_port}"

    @property
    def admin_url(self) -> str:
        """Of its admin REST interface."""
        return f"http://{self.id}"

    @property
    def service_url(self) -> str:
        """Of producers and consumers."""
        return f"pulsar://127.0.0.1:{self.port}"

    def serves(self) -> bool:
        """Return True if the broker is ready now."""
        transport = Transport(self.admin_url, None, user_agent="anabranch-lab", timeout_seconds=5)
        try:
            ready = transport.exchange("GET", "/admin/v2/brokers/ready")
            return isinstance(ready, Response) and ready.status == 200
        finally:
            transport.close()


class PulsarCluster:
    """ZooKeeper, bookie and brokers in one folder."""

    def __init__(
        self,
        folder: Path,
        jars: Path,
        zookeeper_jars: Path,
        heap: str = "384m",
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """`jars` and `zookeeper_jars` are the folders of `anabranch.local.setup`; `heap` is a broker's, `settings` are
        laid over
        its `broker.conf`."""
        self.folder, self._jars, self._heap = Path(folder).resolve(), Path(jars).resolve(), heap
        self._settings = dict(settings or {})
        self.zookeeper = EmbeddedZooKeeper(self.folder / "zookeeper", zookeeper_jars)
        self._bookie = _Program("bookie", self.folder)
        self.brokers: list[PulsarBroker] = []

    def start(self, brokers: int) -> None:
        """Start everything and wait until it serves; raise `SetupError` if it does not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.zookeeper.start()
        first = self._made()
        self._initialize(first)
        self._start_bookie()
        self.begin(first)
        others = [self._made() for _ in range(brokers - 1)]
        for broker in others:
            self._launch(broker)
        for broker in others:
            _await(broker)

    def join(self) -> PulsarBroker:
        """One more broker."""
        broker = self._made()
        self.begin(broker)
        return broker

    def begin(self, broker: PulsarBroker) -> None:
        """Start a broker, also a killed one, and wait until it serves; raise `SetupError` if it does not."""
        self._launch(broker)
        _await(broker)

    def stop(self) -> None:
        """Stop everything."""
        for broker in self.brokers:
            broker.kill()
        self._bookie.kill()
        self.zookeeper.stop()

    def _launch(self, broker: PulsarBroker) -> None:
        file = self.folder / broker.name / "broker.conf"
        write_properties(
            file,
            {
                **_BROKER,
                "metadataStoreUrl": f"zk:{self.zookeeper.address}",
                "configurationMetadataStoreUrl": f"zk:{self.zookeeper.address}",
                "brokerServicePort": broker.port,
                "webServicePort": broker.web_port,
                **self._settings,
            },
        )
        broker.launch(
            command(
                file.parent,
                self._jars,
                self._heap,
                "org.apache.pulsar.PulsarBrokerStarter",
                "-c",
                str(file),
                flags=_FLAGS,
            )
        )

    def _made(self) -> PulsarBroker:
        made = PulsarBroker(f"broker-{len(self.brokers) + 1}", self.folder)
        self.brokers.append(made)
        return made

    def _initialize(self, first: PulsarBroker) -> None:
        main, address = "org.apache.pulsar.PulsarClusterMetadataSetup", f"zk:{self.zookeeper.address}"
        made = _Program("metadata", self.folder)
        made.launch(
            command(
                self.folder / "metadata",
                self._jars,
                "128m",
                main,
                "-c",
                str(_BROKER["clusterName"]),
                "-md",
                address,
                "-cs",
                address,
                "-uw",
                first.admin_url,
                "-ub",
                first.service_url,
                flags=_FLAGS,
            )
        )
        assert made.process is not None
        if made.process.wait(_START_SECONDS):
            raise made.failed()

    def _start_bookie(self) -> None:
        [port] = free_ports(1)
        file = self.folder / "bookie" / "bookie.conf"
        write_properties(
            file,
            {
                **BOOKIE,
                "bookiePort": port,
                "listeningInterface": loopback(),
                "metadataServiceUri": f"zk+hierarchical://{self.zookeeper.address}/ledgers",
                "journalDirectory": file.parent / "journal",
                "ledgerDirectories": file.parent / "ledgers",
            },
        )
        main = "org.apache.bookkeeper.server.Main"
        self._bookie.launch(command(file.parent, self._jars, "256m", main, "--conf", str(file), flags=_FLAGS))
        end = time.monotonic() + _START_SECONDS
        while not _listens(port):
            if not self._bookie.runs or time.monotonic() > end:
                raise self._bookie.failed()
            time.sleep(0.1)


def _await(broker: PulsarBroker) -> None:
    end = time.monotonic() + _START_SECONDS
    while not broker.serves():
        if not broker.runs or time.monotonic() > end:
            raise broker.failed()
        time.sleep(0.2)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


CLUSTER = "test"
"""The name of the Pulsar cluster."""
MODULAR = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
EXTENSIBLE = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"
"""Pulsar's two load managers, as `loadManagerClassName`."""
BUNDLE_BROKERS: dict[str, object] = {
    "loadManagerClassName": EXTENSIBLE,
    "loadBalancerAutoBundleSplitEnabled": False,
    "scalableTopicsEnabled": False,
}
"""Brokers with the extensible load manager that leave it to others which bundle goes where: neither they nor the
balancer of scalable topics changes anything by itself."""
_BROKER: dict[str, object] = {
    "clusterName": CLUSTER,
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
    "managedLedgerCacheSizeMB": 16,
    "bookkeeperNumberOfChannelsPerBookie": 2,
    "numIOThreads": 2,
    "numHttpServerThreads": 8,
    "numOrderedExecutorThreads": 2,
    "bookkeeperClientNumWorkerThreads": 2,
    "managedLedgerNumSchedulerThreads": 2,
    "transactionCoordinatorEnabled": False,
    "webSocketServiceEnabled": False,
    "systemTopicEnabled": True,
    "topicLevelPoliciesEnabled": True,
    "loadBalancerSheddingEnabled": False,
    "loadBalancerOverrideBrokerNicSpeedGbps": 1,
    "defaultNumberOfNamespaceBundles": 16,
    # A broker that was killed is known to be gone after so long, instead of 30 s.
    "metadataStoreSessionTimeoutMillis": 6000,
    "statsUpdateFrequencyInSecs": 2,
    "statsUpdateInitialDelayInSecs": 2,
    "scalableTopicsEnabled": True,
    "scalableTopicAutoScaleEnabled": False,
}
BOOKIE: dict[str, object] = {
    "allowLoopback": True,
    "advertisedAddress": "127.0.0.1",
    "autoRecoveryDaemonEnabled": False,
    "journalSyncData": False,
    "journalMaxSizeMB": 64,
    "journalPreAllocSizeMB": 4,
    "diskUsageThreshold": 0.99,
    "diskUsageWarnThreshold": 0.985,
    "diskUsageLwmThreshold": 0.98,
    "minUsableSizeForIndexFileCreation": 1_048_576,
    "isForceGCAllowWhenNoSpace": True,
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "dbStorage_writeCacheMaxSizeMb": 32,
    "dbStorage_readAheadCacheMaxSizeMb": 32,
    "dbStorage_rocksDB_blockCacheSize": 16_777_216,
    "serverNumIOThreads": 2,
}
"""A bookie that is small, and quick to start."""
