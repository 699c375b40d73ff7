"""The definition of a sample in Python integers; also used for the few samples that float64 cannot decide.

Attempt a at element i reads stream 4a: a uniform's highest 64 bits, and a word of sign, b low bits and the highest 18
bits of a coin. Further bits are in streams 4a + 1 (128 of the uniform) and 4a + 2 (128 of the coin). The uniform, out
of 2**192, picks the block; the coin, out of 2**146, accepts. The next attempt follows if the coin rejects, or for a
zero with a minus sign among wider blocks.
"""

from __future__ import annotations

from bisect import bisect_right

from atoll.server.privacy.noise.keystream import number
from atoll.server.privacy.noise.tables import SHORT_COIN_BITS, Tables

MAX_ATTEMPTS = 256
"""Attempts before the generator counts as broken; each is rejected with probability below 1/20."""
STREAMS = 4

_LOW_WORD = (1 << 64) - 1


class NoiseExhaustedError(ArithmeticError):
    """Too many attempts in a row were rejected: the generator must be broken."""

    def __init__(self, element: int) -> None:
        super().__init__(f"element {element}: {MAX_ATTEMPTS} attempts in a row were rejected; is this processor sound?")


def settle(tables: Tables, key: bytes, element: int) -> int:
    """The sample of one element."""
    for stream in range(0, STREAMS * MAX_ATTEMPTS, STREAMS):
        bits = number(key, stream, element)
        uniform, word = bits & _LOW_WORD, bits >> 64
        low = (word >> (63 - tables.low_bits)) & ((1 << tables.low_bits) - 1)
        coin = word & ((1 << SHORT_COIN_BITS) - 1)
        block = bisect_right(tables.thresholds, uniform << 128 | number(key, stream + 1, element))
        magnitude, minus = (block << tables.low_bits) + low, word >> 63
        if minus and not magnitude and not tables.zero_is_fine:
            continue
        if tables.accepts(block, low, coin << 128 | number(key, stream + 2, element)):
            return -magnitude if minus else magnitude
    raise NoiseExhaustedError(element)
