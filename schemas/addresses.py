"""Comparable hosts and ports of HTTP, from headers, URLs and settings; trust is based on them."""

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?", re.ASCII)
DEFAULT_PORTS = {"http": 80, "https": 443}


class Authority(NamedTuple):
    """`host[:port]`, compared by value."""

    host: str
    """Name in lower case without a trailing dot, or an address as `ipaddress` writes it."""
    port: int | None
    is_address: bool
    """True if `host` is an IP address, not a name."""


def read_authority(text: str) -> Authority | None:
    """Read a Host header, or the authority of a URL without a user; None for anything else."""
    if (match := _AUTHORITY.fullmatch(text)) is None:
        return None
    address, name, digits = match.groups()
    port = int(digits) if digits else None
    try:
        return Authority(str(ipaddress.ip_address(address or name)), port, True)
    except ValueError:
        host = name.lower().removesuffix(".") if name else ""
        return Authority(host, port, False) if host else None


def way_from_outside(host: str, names: Iterable[str] = (), urls: Iterable[str] = ()) -> str | None:
    """Return the setting that exposes a process to other machines, also through a proxy, or None."""
    if not is_loopback(host):
        return f"host {host} is not a loopback address"
    for name in names:
        if not is_loopback(name):
            return f"names: {name} is not a loopback address"
    for url in urls:
        if url and not is_loopback(urlsplit(url).hostname or ""):
            return f"{url} is not a loopback address"
    return None


def is_loopback(host: str) -> bool:
    """Return whether a host, an address or `localhost`, is this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def are_here(addresses: str) -> bool:
    """Return whether all of `host[:port],host[:port]` are this machine's; True for an empty list."""
    authorities = [read_authority(text.strip()) for text in addresses.split(",") if text.strip()]
    return all(text is not None and is_loopback(text.host) for text in authorities)
