"""Random numbers from a cryptographic generator: AES-256 in counter mode, keyed by the operating system.

Each element can be computed again with the same result: a chunk that is sent twice must not get new noise, which a
receiver of both copies could average away.
"""

from __future__ import annotations

import math
import os

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

KEY_BYTES = 32
LARGEST_NORMAL = math.sqrt(2 * 65 * math.log(2))
"""Largest magnitude of a drawn normal (9.49 standard deviations); the exact radius exceeds it with chance 2^-65."""
_WORDS = 0
_NORMALS = 1
_BLOCK_WORDS = 2
_WORD_BYTES = 8


class Keystream:
    """Random words and normals, addressed by position, from one key. Different purposes need different keys.

    Args:
        key: 32 bytes; drawn from the operating system if None.
    """

    def __init__(self, key: bytes | None = None) -> None:
        key = os.urandom(KEY_BYTES) if key is None else key
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes; {KEY_BYTES} are needed")
        self._algorithm = algorithms.AES256(key)

    def words(self, start: int, size: int) -> Words:
        """64 random bits for each position from ``start``, uint64 [size]."""
        return self._stream(_WORDS, start, size)

    def uniforms(self, start: int, size: int) -> Floats:
        """Multiples of 2^-53 in [0, 1), float64 [size], for positions from ``start``; from the bits of ``words``."""
        return (self.words(start, size) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normals(self, start: int, size: int) -> Floats:
        """Standard normals, float64 [size], for positions from ``start``, in pairs (Box & Muller 1958)."""
        first, last = start // 2, (start + size + 1) // 2
        pairs = self._stream(_NORMALS, 2 * first, 2 * (last - first)).reshape(-1, 2)
        radius = np.sqrt(-2.0 * np.log((pairs[:, 0].astype(np.float64) + 0.5) * 2.0**-64))
        angle = (pairs[:, 1] >> np.uint64(11)) * (2.0**-53 * 2 * math.pi)
        found = np.empty((last - first, 2))
        np.multiply(radius, np.cos(angle), out=found[:, 0])
        np.multiply(radius, np.sin(angle), out=found[:, 1])
        return found.reshape(-1)[start - 2 * first :][:size]

    def _stream(self, purpose: int, start: int, size: int) -> Words:
        """Words of one purpose; a cipher block has two words, and the top bit of its counter is the purpose."""
        block, skipped = divmod(start, _BLOCK_WORDS)
        counter = ((purpose << 127) + block).to_bytes(16, "big")
        stream = Cipher(self._algorithm, modes.CTR(counter)).encryptor()
        data = stream.update(bytes((skipped + size) * _WORD_BYTES))
        return np.frombuffer(data, "<u8")[skipped:].astype(np.uint64, copy=False)
