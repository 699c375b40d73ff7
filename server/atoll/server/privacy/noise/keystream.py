"""The random bits of noise: AES-256 of (stream, element), so that the bits of any element can be made separately.

A block of 128 bits is AES-256 of ``stream * 2**64 + element``, both below 2**64, as one 16-byte big-endian number.
Neighbouring elements of one stream equal the output of AES in counter mode; scattered ones are encrypted block by block
and get the same bits. Since keys are never used twice (``mechanisms``), the bits are a pseudorandom function to an
adversary without the key: n blocks are distinguished from random ones with a probability below n**2 / 2**129.

There is no shared state: threads and forked processes work independently.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB

KEY_BYTES = 32
BLOCK_BYTES = 16
RUN = 1 << 14
"""Number of elements whose bits are made at a time: 256 KiB, which fit a core's second-level cache."""

_ZEROS = bytes(RUN * BLOCK_BYTES)

Words = npt.NDArray[np.uint64]


def check_key(key: bytes) -> None:
    """Refuse a key of the wrong length.

    Raises:
        ValueError: for another length than 32 bytes.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"a noise key has {KEY_BYTES} bytes, not {len(key)}")


class Keystream:
    """The bits of one stream from element ``start`` on, in order."""

    def __init__(self, key: bytes, start: int, stream: int = 0) -> None:
        check_key(key)
        counter = stream.to_bytes(8, "big") + start.to_bytes(8, "big")
        self._context: CipherContext = Cipher(AES(key), CTR(counter)).encryptor()
        self._buffer = bytearray(RUN * BLOCK_BYTES + BLOCK_BYTES - 1)  # extra room that ``update_into`` requires

    def next(self, elements: int) -> Words:
        """Two little-endian words for each of the next ``elements`` (at most ``RUN``); valid until the next call."""
        size = elements * BLOCK_BYTES
        self._context.update_into(memoryview(_ZEROS)[:size], self._buffer)
        return np.frombuffer(self._buffer, "<u8", 2 * elements)


def scattered(key: bytes, stream: int, elements: npt.NDArray[np.int64]) -> Words:
    """Two little-endian words for each of these elements."""
    blocks = np.empty((elements.size, 2), ">u8")
    blocks[:, 0] = stream
    blocks[:, 1] = elements
    return np.frombuffer(Cipher(AES(key), ECB()).encryptor().update(blocks.tobytes()), "<u8")  # noqa: S305 - a counter in each


def number(key: bytes, stream: int, element: int) -> int:
    """The 128 bits of one element as an integer, little-endian."""
    block = stream.to_bytes(8, "big") + element.to_bytes(8, "big")
    return int.from_bytes(Cipher(AES(key), ECB()).encryptor().update(block), "little")  # noqa: S305 - one block
