"""Where calls come from, as gRPC names it, and how such a connection is closed, which gRPC for Python cannot do.

A message that its reader does not take stays in gRPC until the connection is gone: neither cancelling the write nor
aborting the call takes it back. So the connection's socket is looked for among this process's files and shut down; gRPC
sees the end of the stream and frees all that belongs to it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import urllib.parse

_OPEN_FILES = "/dev/fd"
_V6_PREFIX = 64
"""One customer of a provider has at least such a network of IPv6 addresses (RFC 6177)."""
Address = tuple[str, int]


def address_of(peer: str) -> Address | None:
    """IP address and port of a peer, such as ``ipv4:10.1.2.3:50123`` or ``ipv6:%5B::1%5D:50123``; None without them."""
    rest = urllib.parse.unquote(peer).partition(":")[2]
    host, _, port = rest.rpartition(":")
    address = _ip_address(host.strip("[]"))
    return (str(address), int(port)) if address is not None and port.isdigit() else None


def network_of(peer: str) -> str:
    """What calls of strangers are counted by: the IPv4 address, the /64 network of an IPv6 address, else the kind."""
    found = address_of(peer)
    if found is None:
        return peer.partition(":")[0]
    address = ipaddress.ip_address(found[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.ip_network((address, _V6_PREFIX), strict=False))


def cut(peer: str) -> bool:
    """Shut down this process's connection with a peer; whether there was one. Blocking: 10 us for each open file."""
    wanted = address_of(peer)
    if wanted is None:
        return False
    for name in os.listdir(_OPEN_FILES):  # noqa: PTH208  # numbers of descriptors, not paths
        connection = _connection(int(name))
        if connection is None:
            continue
        with connection, contextlib.suppress(OSError):  # a listener, or closed meanwhile
            host, port = connection.getpeername()[:2]
            if (str(_ip_address(host)), port) == wanted:
                connection.shutdown(socket.SHUT_RDWR)
                return True
    return False


def _connection(descriptor: int) -> socket.socket | None:
    """The TCP socket behind a descriptor, by one of its own: what that leads to cannot change meanwhile."""
    try:
        own = os.dup(descriptor)
    except OSError:  # closed meanwhile
        return None
    try:
        found = socket.socket(fileno=own)
    except OSError:  # no socket
        os.close(own)
        return None
    if found.family in {socket.AF_INET, socket.AF_INET6} and found.type == socket.SOCK_STREAM:
        return found
    found.close()
    return None


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, without a zone; an IPv4 address in an IPv6 one as what it is."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
