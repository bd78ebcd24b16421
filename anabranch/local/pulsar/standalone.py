"""Standalone Pulsar 5 on loopback, from the checked jars: broker and bookie in one process.

Stage: the real cluster of the tests and of a local run with Pulsar, in a folder of its own. It is unmodified: only its
configuration is ours. Data survives kill -9 and later starts, also with other ports. Rates, which it works out every
60 s by default, come every second. Its own auto-scaler is off unless it is asked for, so that nobody else splits and
merges.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from anabranch.admin.answers import Answered, Response
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import Transport
from anabranch.local.broker import check_port_is_free, free_ports
from anabranch.local.embedded import EmbeddedServer
from anabranch.local.pulsar.jvm import command, loopback, write_properties
from anabranch.local.pulsar.tokens import SecretKey, Signer
from schemas.tls import TlsFiles, client_context

_ADMIN = "admin"
"""The role that may do everything."""


class StandalonePulsar(EmbeddedServer):
    """Standalone Pulsar process with fixed addresses.

    `admin_url` and `service_url` are known from the start and stay the same across restarts of the process.
    """

    NAME, LOG = "Pulsar", "pulsar.log"
    START_SECONDS, STOP_SECONDS = 180.0, 30.0

    def __init__(
        self,
        folder: Path,
        jars: Path,
        heap: str = "512m",
        web_port: int = 0,
        tokens: bool | Signer = False,
        tls: TlsFiles | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """`folder` holds data, configuration and log; `jars` is the folder of `anabranch.local.setup.ensure_pulsar`.

        `tokens` asks every client for a token (see `token`), by a key of its own or of the given signer. With `tls`, a
        certificate of `localhost` that signs itself, and its key, there is nothing but TLS. `settings` are lines of
        broker.conf over ours, such as `{"scalableTopicAutoScaleEnabled": True}`. `web_port` 0 means a free one.
        """
        super().__init__(folder, jars, heap)
        if web_port:
            check_port_is_free(web_port, "Pulsar's admin interface")
        self.port, free = free_ports(2)
        self.web_port = web_port or free
        self._settings = dict(settings or {})
        self._signer = self._kept_key() if tokens is True else tokens or None
        self.tls = tls

    @property
    def admin_url(self) -> str:
        """Of the admin REST interface."""
        return f"https://localhost:{self.web_port}" if self.tls else f"http://127.0.0.1:{self.web_port}"

    @property
    def service_url(self) -> str:
        """Of producers and consumers."""
        return f"pulsar+ssl://localhost:{self.port}" if self.tls else f"pulsar://127.0.0.1:{self.port}"

    @property
    def jars(self) -> Path:
        """The folder of its jars."""
        return self._jars

    def token(self, role: str = _ADMIN) -> str | None:
        """A token of a role; the default may do everything. None: it asks for no token."""
        return None if self._signer is None else self._signer.token(role)

    def prepare(self) -> list[str]:
        """Write the configuration and return the command that runs Pulsar.

        Raises `SetupError` without a loopback interface.
        """
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
            "localhost" if self.tls else "127.0.0.1",
            "--no-functions-worker",
            "--no-stream-storage",
        )

    def serves(self) -> bool:
        """Return True if Pulsar answers clients and has the namespace `public/default`."""
        believed = client_context(TlsFiles(ca=self.tls.certificate)) if self.tls else None
        transport = Transport(self.admin_url, self.token(), user_agent="anabranch-lab", timeout_seconds=5, tls=believed)
        topics = ScalableTopics(transport)
        try:
            ready = transport.exchange("GET", "/admin/v2/brokers/ready")
            if not isinstance(ready, Response) or ready.status != 200:
                return False
            reply = topics.list_namespaces("public")
            return isinstance(reply, Answered) and "public/default" in reply.value
        finally:
            topics.close()

    def _properties(self) -> dict[str, object]:
        ours = {
            **_PROPERTIES,
            "brokerServicePort": self.port,
            "webServicePort": self.web_port,
            "listeningInterface": loopback(),
        }
        if self.tls is not None:
            ours |= {
                "brokerServicePort": "",
                "brokerServicePortTls": self.port,
                "webServicePort": "",
                "webServicePortTls": self.web_port,
                "tlsCertificateFilePath": self.tls.certificate,
                "tlsKeyFilePath": self.tls.key,
                "brokerClientTlsEnabled": True,
                "brokerClientTrustCertsFilePath": self.tls.certificate,
            }
        if self._signer is not None:
            ours |= {
                **self._signer.broker_settings(),
                "authenticationEnabled": True,
                "authorizationEnabled": True,
                "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
                "superUserRoles": _ADMIN,
                "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
                "brokerClientAuthenticationParameters": json.dumps({"token": self.token()}),
            }
        return ours | self._settings

    def _kept_key(self) -> SecretKey:
        """The key of earlier starts in this folder, or a new one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "token.key"
        if not file.is_file():
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as key_file:
                key_file.write(SecretKey.new().raw)
        return SecretKey(file.read_bytes())


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
