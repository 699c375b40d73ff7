"""Valid host names, in settings, certificates and tokens."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?)*"
)


def is_host_name(name: str) -> bool:
    """Whether a text has the form of a DNS name."""
    return _HOST.fullmatch(name) is not None


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An IP address as certificates contain it: without a zone, in which IPv6 allows nearly any text.

    Raises:
        ValueError: for anything else.
    """
    if "%" in name:
        raise ValueError(f"{name[:100]!r} has a zone, which has no meaning on other machines")
    return ipaddress.ip_address(name)


def compared(name: str) -> str:
    """A host name or address in the form that TLS compares: lower case, and addresses in canonical form."""
    try:
        return address_of(name).compressed
    except ValueError:
        return name.lower()


def advertised_name(value: str | None) -> str | None:
    """Check a setting that names this machine to participants, and return it unchanged.

    Raises:
        ValueError: if it is not a host name or IP address but, for example, an address with a port or a URL.
    """
    if value is None or is_host_name(value):
        return value
    try:
        ipaddress.ip_address(value)
    except ValueError:
        raise ValueError(
            "expected only a host name or an IP address, such as fl.example.org: no port, no https://"
        ) from None
    return value
