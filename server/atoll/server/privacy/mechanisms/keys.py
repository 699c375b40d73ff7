"""Derives single-purpose keys from a run's secret: HKDF-Expand with SHA-256 (RFC 5869, Section 2.3).

The secret is 32 random bytes, so HKDF-Extract is not needed. Derived keys reveal neither the secret nor another key.
"""

from __future__ import annotations

import secrets

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from atoll.server.privacy.noise.keystream import KEY_BYTES

_CONTEXT = b"atoll 2026 noise"


def new_secret() -> bytes:
    """32 bytes from the operating system's generator."""
    return secrets.token_bytes(KEY_BYTES)


def derived(secret: bytes, purpose: str, version: int, binding: bytes = b"") -> bytes:
    """The 32-byte key for a purpose at one release, bound to the released contributions; all keys differ."""
    parts = (_CONTEXT, purpose.encode(), version.to_bytes(8, "big"), binding)
    info = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return HKDFExpand(SHA256(), KEY_BYTES, info).derive(secret)
