"""Proof of possession of an expired certificate's key, for its renewal (docs/protocol.md, "Digests")."""

from __future__ import annotations

_DOMAIN = b"atoll renewal 1\n"


def renewal_proof(csr_pem: bytes) -> bytes:
    """The bytes that the old key signs (ECDSA, P-256, SHA-256, DER) when it asks for a certificate for a new key."""
    return _DOMAIN + csr_pem
