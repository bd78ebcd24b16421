"""Hosts and ports of HTTP as they can be compared: of headers, of URLs, of settings.

Stage: pure; under everything that decides by an address whom it trusts.
"""

from __future__ import annotations

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
    """A name in small letters without the last dot, or an address as `ipaddress` writes it."""
    port: int | None
    is_address: bool
    """Whether `host` is an IP address and no name."""


def read_authority(text: str) -> Authority | None:
    """What stands in a header Host, or between `//` and the path of a URL without a user; None for anything else."""
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        return None
    address, name, digits = match.groups()
    port = int(digits) if digits else None
    try:
        return Authority(str(ipaddress.ip_address(address or name)), port, True)
    except ValueError:
        host = name.lower().removesuffix(".") if name else ""
        return Authority(host, port, False) if host else None


def way_from_outside(host: str, names: Iterable[str] = (), urls: Iterable[str] = ()) -> str | None:
    """Return the setting by which others than this machine reach a process, through a proxy too; None: nobody does."""
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
    """Whether a host is this machine alone, as an address or as `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def are_here(addresses: str) -> bool:
    """Tell if all of `host[:port],host[:port]` are this machine's; none at all are."""
    found = [read_authority(one.strip()) for one in addresses.split(",") if one.strip()]
    return all(one is not None and is_loopback(one.host) for one in found)
