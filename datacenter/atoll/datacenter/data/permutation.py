"""A keyed shuffle of [0, n), computed per element: nothing of size n is held in memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_LENGTH = 1 << 62
_ROUNDS = 6
_BLOCK_PLACES, _BLOCK_EPOCHS = 4096, 8
_MASK = (1 << 64) - 1


class Permutation:
    """A bijection of [0, length) onto itself, selected by a seed and a number.

    A balanced Feistel network over the smallest even number of bits that holds ``length``, with SplitMix64's finaliser
    as round function (Luby and Rackoff 1988; Steele et al. 2014), walked along its cycles until the value is below
    ``length`` (Black and Rogaway 2002, section 3). It is not cryptographically secure.

    Args:
        length: number of elements, at least 1.
        seed: selects the family.
        number: selects the member: the epoch.
    """

    def __init__(self, length: int, seed: int, number: int) -> None:
        if not 1 <= length <= MAX_LENGTH:
            raise ValueError(f"a permutation of {length} elements: from 1 to {MAX_LENGTH}")
        self.length = length
        self._half_bits = np.uint64(max(1, ((length - 1).bit_length() + 1) // 2))
        self._half_mask = np.uint64((1 << int(self._half_bits)) - 1)
        key = _mix(np.asarray([seed & _MASK], np.uint64)) ^ np.uint64(number & _MASK)
        self._keys = [_mix(key + np.uint64(turn))[0] for turn in range(_ROUNDS)]

    def __call__(self, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map ``elements`` (int64, any shape, in [0, length)); same shape and dtype."""
        values = np.array(elements, np.uint64)
        if values.size and not (elements.min() >= 0 and elements.max() < self.length):
            raise ValueError(f"elements from {elements.min()} to {elements.max()}, of a permutation of {self.length}")
        outside = np.ones(values.shape, np.bool_)
        while outside.any():
            values[outside] = self._network(values[outside])
            outside = values >= np.uint64(self.length)
        return values.astype(np.int64)

    def _network(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half_bits, values & self._half_mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key) & self._half_mask)
        return (left << self._half_bits) | right


class Order:
    """The endless sequence of shuffled epochs: position p is in epoch p // length; each epoch has its own permutation.

    Up to 4,096 positions are computed at a time, since a block costs hardly more than its first element; two blocks are
    held.

    Args:
        length: length of an epoch, at least 1.
        seed: seed of all epochs.
    """

    def __init__(self, length: int, seed: int) -> None:
        self.length, self._seed = length, seed
        self._block_places = min(_BLOCK_PLACES, _BLOCK_EPOCHS * length)
        self._blocks: dict[int, NDArray[np.int64]] = {}

    def __call__(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the elements at positions [start, stop); int64."""
        size = self._block_places
        parts = [
            self._block(number)[max(start - number * size, 0) : stop - number * size]
            for number in range(start // size, -(-stop // size))
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _block(self, number: int) -> NDArray[np.int64]:
        block = self._blocks.get(number)
        if block is None:
            block = self._made(number)
            before = self._blocks.get(number - 1)
            self._blocks = {number: block} if before is None else {number - 1: before, number: block}
        return block

    def _made(self, number: int) -> NDArray[np.int64]:
        places = np.arange(self._block_places, dtype=np.int64) + number * self._block_places
        epochs, places = np.divmod(places, self.length)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            places[here] = Permutation(self.length, self._seed, epoch)(places[here])
        return places


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser; arithmetic is modulo 2^64."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
