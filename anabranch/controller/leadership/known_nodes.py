"""Trusted addresses of other nodes: clients are redirected there with their tokens.

If others can write to ZooKeeper, or intercept the connection to it, only configured addresses are trusted; and without
tokens, on loopback, those of this machine, where several nodes are a trial.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from anabranch.controller.metadata.base import MetadataStore
from anabranch.controller.metadata.store_paths import COPIER, NODES, decode
from schemas.addresses import DEFAULT_PORTS, Authority, is_loopback, read_authority

Address = tuple[str, Authority]


class KnownNodes:
    """Addresses trusted by the node at `own`."""

    def __init__(
        self, own: str, configured: Iterable[str] = (), store_is_closed: bool = False, is_guarded: bool = False
    ) -> None:
        """`configured`: URLs of nodes.

        `is_guarded`: tokens are required, and another process here could collect them.

        `store_is_closed`: only nodes can write to the metadata store, and the connection to it is protected.
        """
        self._is_guarded = is_guarded
        self._own = _address(own)
        self._configured = {address for url in configured if (address := _address(url)) is not None}
        self._store_is_closed = store_is_closed

    def believe(self, url: str) -> bool:
        """Return whether clients may be redirected to the node with this `url`: never from https to http."""
        address = _address(url)
        if address is None or self._own is None or address == self._own:
            return address is not None and address == self._own
        if self._own[0] == "https" and address[0] != "https":
            return False
        if self._store_is_closed or address in self._configured:
            return True
        return not self._is_guarded and is_loopback(self._own[1].host) and is_loopback(address[1].host)

    def is_configured(self, url: str) -> bool:
        """Return whether the settings name this node."""
        return _address(url) in self._configured

    def alive(self, nodes: MetadataStore) -> list[str]:
        """Return `host:port` of live, trusted nodes with this one's scheme, including this one; sorted."""
        urls = [decode(name) for name in nodes.children(NODES) if name != COPIER.rpartition("/")[2]]
        addresses = {_address(url) for url in urls if self.believe(url)} | {self._own}
        return sorted(_text(address) for address in addresses if address and self._own and address[0] == self._own[0])


def _address(url: str) -> Address | None:
    """Return scheme and authority with the port; None if `url` is not a plain base URL."""
    if not url.isprintable() or "#" in url or url.endswith("?"):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    authority = read_authority(parts.netloc)
    if parts.scheme not in DEFAULT_PORTS or authority is None or parts.path not in ("", "/") or parts.query:
        return None
    return parts.scheme, authority._replace(port=authority.port or DEFAULT_PORTS[parts.scheme])


def _text(address: Address) -> str:
    _, (host, port, _) = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
