"""Plaintext connections, which only loopback addresses allow, and the metadata that names their callers."""

from __future__ import annotations

import ipaddress

INSECURE_PARTICIPANT = "atoll-insecure-participant"
"""Metadata key of the participant id that a caller without TLS claims."""
INSECURE_OPERATOR = "atoll-insecure-operator"
"""Metadata key that a caller without TLS sends to be an operator; its value is ``1``."""


def is_loopback(host: str) -> bool:
    """Whether the host names this machine and nothing else: localhost or an address of 127.0.0.0/8 or ::1."""
    bare = host.removeprefix("[").removesuffix("]")
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False
