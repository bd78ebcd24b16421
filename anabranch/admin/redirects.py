"""Redirects, followed by hand, and the addresses that may receive a token.

Stage: under `transport`; pure. A redirect leads to the leader of a topic, which needs the token. But anyone who can
make a server send a `Location`, or impersonate it over plain HTTP, could direct the token anywhere. So:

| a call goes on to | if |
| --- | --- |
| any address, `http` or `https` | it carries no token; never from https to http, nor to an address that names a user |
| a configured one | with the token: scheme, host and port are those of the base URL or of one of `controller.nodes` |
| https at a configured host | with the token, from http: the certificate proves its identity |
| an announced one, by https | with the token: listed by the configured server, which proved itself by certificate |
| another port of this machine, by http | with the token: the base URL, too, leads to this machine |
| any other | never with the token, so it is not followed |

Hosts are compared literally, ignoring case, in the form used to connect: names are not looked up, and `host` and
`host.` are different.
"""

import ipaddress
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import httpx

MAX_REDIRECTS = 5
"""Maximum number of redirects of one call; more indicate a loop."""
REDIRECTS = frozenset({307, 308})
"""Statuses that keep method and body; the interface uses no others."""
MAX_ANNOUNCED = 1_000
"""Maximum number of announced addresses that are trusted; the rest is ignored."""
_PORTS = {"http": 80, "https": 443}
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})


class _Address(NamedTuple):
    scheme: str
    host: str
    port: int


def next_hop(asked: httpx.URL, location: str) -> httpx.URL | None:
    """Return the target of a redirect from `asked` by the header Location; None if it is not followed."""
    try:
        target = asked.join(location)
    except (httpx.InvalidURL, ValueError):
        return None
    address = _address(target)
    if address is None or (asked.scheme == "https" and address.scheme != "https"):
        return None
    return target


class TokenAddresses:
    """Addresses that may receive the token of one client."""

    def __init__(self, base: str, nodes: Iterable[str] = ()) -> None:
        """`base` is the first address of all calls, `nodes` are base URLs of other servers of the cluster."""
        first = _read_base(base)
        self._configured = frozenset(address for address in (first, *map(_read_base, nodes)) if address is not None)
        self._announced: frozenset[_Address] = frozenset()
        self._is_local = first is not None and first.host in _THIS_MACHINE

    def admit(self, url: httpx.URL) -> bool:
        """Return whether the token may be sent there."""
        if (address := _address(url)) is None:
            return False
        if address in self._configured or address in self._announced:
            return True
        if address.scheme == "http":
            return self._is_local and address.host in _THIS_MACHINE
        return address.host in {endpoint.host for endpoint in self._configured if endpoint.scheme == "http"}

    def learn(self, listed: bytes) -> None:
        """Trust the servers listed by a configured one over https: JSON, `["host:port", …]`."""
        try:
            names = json.loads(listed)
        except (ValueError, RecursionError):
            return
        if isinstance(names, list):
            addresses = [_read_base(f"https://{name}") for name in names[:MAX_ANNOUNCED] if isinstance(name, str)]
            self._announced = frozenset(address for address in addresses if address is not None)


def _read_base(base: str) -> _Address | None:
    try:
        return _address(httpx.URL(base))
    except (httpx.InvalidURL, ValueError):
        return None


def _address(url: httpx.URL) -> _Address | None:
    """Return the address to connect to; None if the URL is not a plain http address."""
    host = url.raw_host.decode("ascii", "replace").lower()
    if url.scheme not in _PORTS or not host or url.userinfo:
        return None
    with suppress(ValueError):
        host = str(ipaddress.ip_address(host))
    return _Address(url.scheme, host, url.port or _PORTS[url.scheme])
