"""Addresses that a destination may have: resolved once, checked, and connected to as checked.

Stage: under `anabranch.alerts.posting`. A name that was resolved again for the connection could have another address by
then (DNS rebinding). Addresses of this machine and its link are refused unless the rules allow them: cloud metadata
services and services that trust loopback listen there.
"""

import ipaddress
import socket
from collections.abc import Callable

import httpcore


def address_resolver(allow_local: bool) -> Callable[[str, int], str]:
    """Return a function from host and port to an allowed address, else `httpcore.ConnectError`."""

    def resolve(host: str, port: int) -> str:
        try:
            addresses = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host[:100]} has no address: {error}") from None
        allowed = addresses if allow_local else [address for address in addresses if not is_local(address)]
        if not allowed:
            raise httpcore.ConnectError(
                f"{host[:100]} is {addresses[0]}, an address of this machine or its link: not allowed (allow_local)"
            )
        return allowed[0]

    return resolve


def is_local(address: str) -> bool:
    """Tell if an address, or one embedded, is loopback, link-local, metadata, multicast or reserved."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = (
            parsed.ipv4_mapped or parsed.sixtofour or (parsed.teredo[1] if parsed.teredo else None) or _nat64(parsed)
        )
        if inner is not None:
            return is_local(str(inner))
    return (
        parsed in _METADATA
        or parsed.is_loopback
        or parsed.is_link_local
        or parsed.is_unspecified
        or parsed.is_multicast
        or parsed.is_reserved
    )


def _nat64(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    return ipaddress.IPv4Address(address.packed[-4:]) if address.packed[:12] == _NAT64 else None


_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    )
)
"""Services of clouds that give out metadata or credentials, at addresses that look private or public.

Those at 169.254.169.254 and its neighbours are of the link.
"""
_NAT64 = ipaddress.IPv6Address("64:ff9b::").packed[:12]
