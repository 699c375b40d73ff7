"""Canaries: participants whose updates have separate directions, each in or out by a coin toss.

The directions are orthogonal, so that canaries do not disturb each other's evidence. Updates are far larger than the
clip norm, so that a release that does not clip is detected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Directions = Literal["dirac", "signs"]
OVERSIZE = 16.0
"""Norm of an update before clipping, in clip norms."""


@dataclass(frozen=True, slots=True)
class Canaries:
    """Orthogonal directions in a model of ``size`` elements.

    ``dirac``: one element each (the gradient canaries of Nasr et al. 2023). ``signs``: all elements, each small, with
    the signs of a row of the Hadamard matrix, half of them negative.

    Attributes:
        count: number of canaries, a power of two.
        clip: L2 norm that updates are clipped to.
        directions: see above.
    """

    count: int
    clip: float
    directions: Directions = "dirac"

    def __post_init__(self) -> None:
        if self.count < 2 or self.count & (self.count - 1):
            raise ValueError(f"{self.count} canaries in a round: a power of two from 2 is needed")

    @property
    def size(self) -> int:
        """Number of elements of the model."""
        return self.count

    def update(self, number: int) -> Floats:
        """The update of canary ``number``, (size,): its direction, ``OVERSIZE`` clip norms long."""
        norm = OVERSIZE * self.clip
        if self.directions == "dirac":
            update = np.zeros(self.size, np.float32)
            update[number] = norm
            return update
        row = np.ones(1, np.float32)
        for bit in range(self.count.bit_length() - 1):
            row = np.concatenate([row, -row if number >> bit & 1 else row])
        return row * np.float32(norm / np.sqrt(self.size))

    def found_in(self, sums: Doubles) -> Doubles:
        """A sum's component in each canary's direction, (count,), in clip norms: 1 for a canary in the sum."""
        if self.directions == "dirac":
            return np.divide(sums, self.clip)
        return _hadamard(sums) / float(np.sqrt(self.size) * self.clip)


def _hadamard(values: Doubles) -> Doubles:
    """The product with the Hadamard matrix (rows as in ``Canaries.update``), by the fast transform."""
    found, half = values.copy(), 1
    while half < found.size:
        pairs = found.reshape(-1, 2, half)
        found = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return found
