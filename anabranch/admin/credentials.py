"""Token of a client's calls: a fixed one, or a temporary one from an identity provider (OAuth2).

Files and names of OAuth2 are those of Pulsar's own clients: a key file `{"type": "client_credentials", "client_id": …,
"client_secret": …}`, with issuer, audience and scope in the settings. The flow is RFC 6749, 4.4; the provider's
`/.well-known/openid-configuration` names the endpoint.
"""

import ipaddress
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpcore
import httpx

from anabranch.admin.connections import Connections, deadline_in
from schemas.settings.root import Settings
from schemas.tls import TlsFiles, client_context

ANSWER_SECONDS = 10.0
"""Longest wait for the provider, both requests together."""
MAX_ANSWER_BYTES = 1_048_576
USED_SHARE = 0.9
"""Share of its life for which a token is used, so that it does not expire in transit (as in Pulsar)."""
ASSUMED_SECONDS = 300.0
"""Life of a token without `expires_in`."""
RENEW_SECONDS = 60.0
"""Minimum time between two renewals: a new token that is refused lacks the role (401 in Pulsar too)."""
RETRY_SECONDS = 1.0
"""Time after a failure during which the provider is not asked again, and calls fail with its error."""


class NoToken(Exception):
    """There is no token to send; the message says why and never contains a secret."""


class Credentials(Protocol):
    """Source of a client's token; thread-safe."""

    def token(self) -> str:
        """Return the token to send now. Raises `NoToken`."""

    def renew(self, refused: str) -> bool:
        """Return whether there may be another token than `refused`, which a server rejected."""


@dataclass(frozen=True)
class FixedToken:
    """Token that stays valid for the life of the process."""

    text: str

    def token(self) -> str:
        return self.text

    def renew(self, refused: str) -> bool:
        return False


@dataclass(frozen=True)
class Provider:
    """Identity provider and the requested access, in the terms of Pulsar's `authParams`."""

    key_file: Path
    """File with the secret; read for each request, so that it can be replaced."""
    issuer: str = ""
    """Base URL; empty: the `issuer_url` of the key file."""
    audience: str = ""
    scope: str = ""


class ClientCredentials:
    """Tokens of an identity provider (client credentials flow), fetched on demand and cached."""

    def __init__(self, provider: Provider, tls: Any = None, now: Callable[[], float] = time.monotonic) -> None:
        """`tls`: verifies the provider's certificate; `now` in seconds."""
        self._provider, self._now = provider, now
        self._client = httpx.Client(transport=Connections(tls or client_context(TlsFiles())))
        self._lock = threading.Lock()
        self._held: tuple[str, float] | None = None
        """A token, and until when it is used."""
        self._renewed_at = float("-inf")
        self._failed: tuple[NoToken, float] | None = None
        """The latest failure, and until when it is reported."""

    def token(self) -> str:
        with self._lock:
            if self._held is not None and self._now() < self._held[1]:
                return self._held[0]
            if self._failed is not None and self._now() < self._failed[1]:
                raise NoToken(*self._failed[0].args)
            try:
                text, seconds = self._ask()
            except NoToken as error:
                self._failed = error, self._now() + RETRY_SECONDS
                raise
            self._held, self._failed = (text, self._now() + USED_SHARE * seconds), None
            return text

    def renew(self, refused: str) -> bool:
        with self._lock:
            if self._held is not None and self._held[0] == refused:
                if self._now() < self._renewed_at + RENEW_SECONDS:
                    return False
                self._held, self._renewed_at = None, self._now()
            return True

    def _ask(self) -> tuple[str, float]:
        key = read_key(self._provider.key_file)
        if not (issuer := (self._provider.issuer or key.get("issuer_url", "")).rstrip("/")):
            raise NoToken("nobody is named who gives tokens: set [controller] oauth2_issuer")
        with deadline_in(ANSWER_SECONDS):
            endpoint = self._answer("GET", f"{issuer}/.well-known/openid-configuration").get("token_endpoint")
            if not isinstance(endpoint, str):
                raise NoToken(f"{issuer} does not say where it gives tokens: its configuration has no token_endpoint")
            asked = {
                "grant_type": "client_credentials",
                "client_id": key["client_id"],
                "client_secret": key["client_secret"],
                "audience": self._provider.audience,
                "scope": self._provider.scope,
            }
            answer = self._answer("POST", endpoint, {name: value for name, value in asked.items() if value})
        token, seconds = answer.get("access_token"), answer.get("expires_in", ASSUMED_SECONDS)
        if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable() or " " in token:
            raise NoToken(f"{endpoint} has answered without an access_token that can be sent")
        try:
            return token, max(float(seconds), 0.0)
        except (TypeError, ValueError):
            return token, ASSUMED_SECONDS

    def _answer(self, method: str, url: str, form: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return a JSON object; redirects are not followed, as the secret is only for the named server."""
        _check_is_private(url)
        headers = {"Accept": "application/json"}
        try:
            with self._client.stream(method, url, data=form, headers=headers, timeout=ANSWER_SECONDS) as answer:
                body = bytearray()
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        raise NoToken(f"{url} has answered with more than {MAX_ANSWER_BYTES} bytes")
                status = answer.status_code
        except _FAULTS as error:
            raise NoToken(f"{url} gives no answer: {type(error).__name__} {error}".strip()[:500]) from None
        try:
            content = json.loads(bytes(body))
        except (ValueError, RecursionError):
            content = None
        if status != 200 or not isinstance(content, dict):
            raise NoToken(f"{url} has answered {status}{_error_in(content)}")
        return content


_FAULTS: tuple[type[Exception], ...] = (
    httpx.HTTPError,
    httpx.InvalidURL,
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
    OSError,
)


def _error_in(answer: Any) -> str:
    """Format the fields of an error by RFC 6749, 5.2."""
    if not isinstance(answer, dict):
        return ""
    words = [str(answer[name])[:200] for name in ("error", "error_description") if answer.get(name)]
    return f": {', '.join(words)}" if words else ""


def read_key(file: Path) -> dict[str, str]:
    """Return the contents of a key file. Raises `NoToken`."""
    try:
        key = json.loads(file.read_text())
    except OSError as error:
        raise NoToken(f"cannot read {file}, [controller] oauth2_key: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise NoToken(f"{file}, [controller] oauth2_key, is no JSON") from None
    names = ("client_id", "client_secret")
    if not isinstance(key, dict) or not all(isinstance(key.get(name), str) and key[name] for name in names):
        raise NoToken(f"{file}, [controller] oauth2_key, has no client_id and client_secret")
    if key.get("type", "client_credentials") != "client_credentials":
        raise NoToken(f"{file}, [controller] oauth2_key, is of type {str(key['type'])[:50]!r}, not client_credentials")
    return {name: value for name, value in key.items() if isinstance(value, str)}


def _check_is_private(url: str) -> None:
    """Raise `NoToken` unless the URL is https or this machine, so that the secret is not exposed."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        raise NoToken(f"{url[:200]!r} is no URL") from None
    host = parsed.host
    try:
        is_here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = host == "localhost"
    if parsed.scheme != "https" and not (parsed.scheme == "http" and is_here):
        raise NoToken(f"{parsed.scheme}://{host} is not https, and the client's secret would be readable on the way")


def credentials_of(settings: Settings) -> Credentials | None:
    """Return the credentials of `[controller]` or None. Raises `SettingsError` for unusable TLS files."""
    chosen = settings.controller
    if chosen.oauth2_key:
        provider = Provider(
            settings.path(chosen.oauth2_key), chosen.oauth2_issuer, chosen.oauth2_audience, chosen.oauth2_scope
        )
        return ClientCredentials(provider, settings.oauth2_context())
    return None if chosen.token is None else FixedToken(chosen.token.get_secret_value())
