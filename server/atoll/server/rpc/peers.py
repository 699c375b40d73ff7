"""Addresses of callers, from the names that gRPC gives them."""

from __future__ import annotations

import ipaddress
import urllib.parse

_V6_PREFIX = 64
"""Prefix length of the smallest IPv6 network that a provider gives to one customer (RFC 6177)."""
Address = tuple[str, int]


def address_of(peer: str) -> Address | None:
    """Address and port of a peer such as ``ipv4:10.1.2.3:50123`` or ``ipv6:%5B::1%5D:50123``; None if it has none."""
    rest = urllib.parse.unquote(peer).partition(":")[2]
    host, _, port = rest.rpartition(":")
    address = ip_address(host.strip("[]"))
    return (str(address), int(port)) if address is not None and port.isdigit() else None


def network_of(peer: str) -> str:
    """Key for counting anonymous calls: the IPv4 address, an IPv6 address's /64 network, else the kind of peer."""
    found = address_of(peer)
    if found is None:
        return peer.partition(":")[0]
    address = ipaddress.ip_address(found[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.ip_network((address, _V6_PREFIX), strict=False))


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address without its zone, IPv4-mapped IPv6 as IPv4 (RFC 4291, 2.5.5.2); None if it is not an address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
