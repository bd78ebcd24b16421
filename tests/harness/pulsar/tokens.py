"""Tokens for Pulsar's `AuthenticationProviderToken`: JWTs signed with a secret key (HS256).

Neighbours: `tests.harness.pulsar.secured` sets a broker up with the key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class Signer(Protocol):
    """Makes tokens that a broker believes."""

    def token(self, role: str) -> str:
        """A token without an end for a role."""

    def broker_settings(self) -> Mapping[str, object]:
        """The lines of broker.conf by which it checks them."""


@dataclass(frozen=True)
class SecretKey:
    """A key that the broker has, too."""

    raw: bytes

    @classmethod
    def new(cls) -> SecretKey:
        """Another one than all others."""
        return cls(secrets.token_bytes(32))

    def token(self, role: str) -> str:
        """A token without an end for a role."""
        signed = claims_of(role, "HS256")
        return f"{signed}.{encoded(hmac.new(self.raw, signed.encode(), hashlib.sha256).digest())}"

    def broker_settings(self) -> Mapping[str, object]:
        """The lines of broker.conf by which it checks them."""
        return {"tokenSecretKey": f"data:;base64,{base64.b64encode(self.raw).decode()}"}


def claims_of(role: str, algorithm: str) -> str:
    """Return the signed content: the first two parts of a token."""
    return ".".join(encoded(json.dumps(part).encode()) for part in ({"alg": algorithm}, {"sub": role}))


def encoded(raw: bytes) -> str:
    """Return bytes encoded as a part of a token."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
