"""Tokens as Pulsar's `AuthenticationProviderToken` takes them: a JWT, signed with a secret key (HS256).

Neighbours: `lab.pulsar.standalone` sets a broker up with the key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets


def new_key() -> bytes:
    """A secret key for a broker."""
    return secrets.token_bytes(32)


def token_of(role: str, key: bytes) -> str:
    """A token without an end for a role."""
    head, claims = (_text(json.dumps(part).encode()) for part in ({"alg": "HS256"}, {"sub": role}))
    signature = hmac.new(key, f"{head}.{claims}".encode(), hashlib.sha256).digest()
    return f"{head}.{claims}.{_text(signature)}"


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
