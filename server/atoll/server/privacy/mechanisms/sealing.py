"""Encryption of kept noise: AES-256 in counter mode, from any element on; only the noise state holds the key."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from atoll.server.privacy.mechanisms.interface import NOISE_BYTES, Integers

_BLOCK_BYTES = 16
_PER_BLOCK = _BLOCK_BYTES // NOISE_BYTES


def sealed(key: bytes, block: Integers, start: int) -> Integers:
    """A copy of a block from element ``start`` on, little-endian; encrypts a plain block, decrypts an encrypted one."""
    blocks, skipped = divmod(start, _PER_BLOCK)
    context = Cipher(AES(key), CTR(blocks.to_bytes(_BLOCK_BYTES, "big"))).encryptor()
    context.update(bytes(skipped * NOISE_BYTES))
    buffer = bytearray(block.nbytes + _BLOCK_BYTES - 1)
    context.update_into(np.ascontiguousarray(block).data.cast("B"), buffer)
    return np.frombuffer(buffer, "<i8", block.size)
