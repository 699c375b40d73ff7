"""What proves an expired certificate's key when it is renewed (docs/protocol.md, "Digests")."""

from __future__ import annotations

_DOMAIN = b"atoll renewal 1\n"


def renewal_proof(csr_pem: bytes) -> bytes:
    """The bytes that the old key signs (ECDSA, P-256, SHA-256, DER) to have the request's key certified."""
    return _DOMAIN + csr_pem
