"""A key pair whose tokens (RS256) a Pulsar checks by the public key alone, as it does those of an identity provider."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.harness.pulsar.tokens import claims_of, encoded

_FILE = Path(__file__).with_name("token_key.json")
"""Of the tests alone: modulus and private exponent as in a JWK, the public key as in X.509 (`openssl genrsa`)."""
_SHA256 = bytes.fromhex("3031300d060960864801650304020105000420")
"""The head of a SHA-256 digest in PKCS #1 (RFC 8017, 9.2)."""


@dataclass(frozen=True)
class KeyPair:
    """The pair of the tests."""

    modulus: int
    exponent: int
    public: str

    @classmethod
    def read(cls) -> KeyPair:
        """The one in the file."""
        key = json.loads(_FILE.read_text())
        return cls(_number(key["n"]), _number(key["d"]), key["public"])

    def token(self, role: str) -> str:
        """A token without an end for a role."""
        signed = claims_of(role, "RS256")
        digest = _SHA256 + hashlib.sha256(signed.encode()).digest()
        size = (self.modulus.bit_length() + 7) // 8
        padded = b"\0\1" + b"\xff" * (size - len(digest) - 3) + b"\0" + digest
        signature = pow(int.from_bytes(padded, "big"), self.exponent, self.modulus)
        return f"{signed}.{encoded(signature.to_bytes(size, 'big'))}"

    def broker_settings(self) -> Mapping[str, object]:
        """The lines of broker.conf by which it checks them."""
        return {"tokenPublicKey": f"data:;base64,{self.public}"}


def _number(text: str) -> int:
    return int.from_bytes(base64.urlsafe_b64decode(text + "=="), "big")
