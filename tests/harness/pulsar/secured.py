"""Standalone Pulsar 5 that asks every client for a token, and speaks nothing but TLS if it has a certificate."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from anabranch.admin.transport import Transport
from anabranch.local.pulsar.standalone import StandalonePulsar
from schemas.tls import TlsFiles, client_context
from tests.harness.pulsar.tokens import SecretKey, Signer

_ADMIN = "admin"
"""The role that may do everything."""


class SecuredPulsar(StandalonePulsar):
    """Standalone Pulsar that lets nobody in without a token."""

    def __init__(
        self,
        folder: Path,
        jars: Path,
        web_port: int = 0,
        signer: Signer | None = None,
        tls: TlsFiles | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """`signer`: of the tokens; None: a key of its own. `tls`: a certificate of `localhost`, and its key."""
        super().__init__(folder, jars, web_port=web_port, settings=settings)
        self._signer = signer or self._kept_key()
        self.tls = tls
        if tls:
            self.ADVERTISED = "localhost"

    @property
    def admin_url(self) -> str:
        return f"https://localhost:{self.web_port}" if self.tls else super().admin_url

    @property
    def service_url(self) -> str:
        return f"pulsar+ssl://localhost:{self.port}" if self.tls else super().service_url

    def token(self, role: str = _ADMIN) -> str:
        """A token of a role; the default may do everything."""
        return self._signer.token(role)

    def _transport(self) -> Transport:
        believed = client_context(TlsFiles(ca=self.tls.certificate)) if self.tls else None
        return Transport(self.admin_url, self.token(), user_agent="anabranch-lab", timeout_seconds=5, tls=believed)

    def _properties(self) -> dict[str, object]:
        ours: dict[str, object] = {
            **self._signer.broker_settings(),
            "authenticationEnabled": True,
            "authorizationEnabled": True,
            "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
            "superUserRoles": _ADMIN,
            "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "brokerClientAuthenticationParameters": json.dumps({"token": self.token()}),
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
        return {**super()._properties(), **ours, **self._settings}

    def _kept_key(self) -> SecretKey:
        """The key of earlier starts in this folder, or a new one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "token.key"
        if not file.is_file():
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as key_file:
                key_file.write(SecretKey.new().raw)
        return SecretKey(file.read_bytes())
