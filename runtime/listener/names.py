"""Host names and browser origins that a process accepts: a browser is no admin.

A page of a stranger can make a browser on this machine, or inside the network, send requests here. The browser says so
in its headers, which a page cannot change, and no other client sends them:

- `Host` is the name by which the page knows this node. A stranger's name that leads here (DNS rebinding) is refused.
  An address instead of a name is no rebinding, so a probe may call a node by the address of its pod; a node that is
  bound to loopback takes loopback addresses only.
- `Origin` is where the page came from, on every request that is more than a simple read. It has to be the `Host`.
- `Sec-Fetch-Site` says the same on every request of a newer browser: `same-origin`, or `none` for an address that a
  person typed.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from schemas.addresses import DEFAULT_PORTS, Authority, is_loopback, read_authority

_OWN_SITE = frozenset({b"same-origin", b"none"})
_FORMS = frozenset({b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data"})

Headers = Iterable[tuple[bytes, bytes]]


class NodeNames:
    """Names of a node: of `host`, to which it is bound, and of `urls`, its own and its clients'."""

    def __init__(
        self, host: str, urls: Iterable[str] = (), names: Iterable[str] = (), called: str = "controller"
    ) -> None:
        """`called`: what the node is, and the section of the settings that has its names."""
        self._called = called
        self._is_local = is_loopback(host)
        own = {"localhost", host.lower(), *(name.lower().rstrip(".") for name in names)}
        self._names = own | {name for url in urls if (name := (urlsplit(url).hostname or "").rstrip("."))}

    def refusal(self, headers: Headers) -> str | None:
        """Return why a request with these headers (lower-case names) is refused, or None to accept it."""
        values_of: dict[bytes, list[bytes]] = {b"host": [], b"origin": [], b"sec-fetch-site": []}
        for name, value in headers:
            if name in values_of:
                values_of[name].append(value)
        hosts, origins, sites = values_of.values()
        # HTTP/1.0 has no Host, and no browser speaks it.
        host = read_authority(hosts[0].decode("latin-1")) if len(hosts) == 1 else None
        if hosts and (host is None or not self._is_own(host)):
            return (
                f"this {self._called} is not called {_list_hosts(hosts)}: use its own name, or add that one to "
                f"{self._called}.names"
            )
        if any(site not in _OWN_SITE for site in sites) or any(not _is_origin(origin, host) for origin in origins):
            return f"a page of another origin may not call this {self._called}"
        return None

    def _is_own(self, host: Authority) -> bool:
        if host.host in self._names:
            return True
        return host.is_address and (not self._is_local or is_loopback(host.host))


def is_form(content_type: bytes) -> bool:
    """Return whether a page can make a browser send a body of this type cross-origin without a preflight."""
    return content_type.partition(b";")[0].strip().lower() in _FORMS


def _is_origin(origin: bytes, host: Authority | None) -> bool:
    scheme, _, authority = origin.decode("latin-1").partition("://")
    default = DEFAULT_PORTS.get(scheme.lower())
    page = read_authority(authority)
    if default is None or page is None or host is None:
        return False
    # What ends TLS in front of a node may pass the default port on or leave it out.
    return page.host == host.host and (page.port or default) == (host.port or default)


def _list_hosts(hosts: list[bytes]) -> str:
    return ascii(b", ".join(hosts)[:200].decode("latin-1"))
