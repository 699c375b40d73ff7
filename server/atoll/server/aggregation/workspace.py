"""Memory that a release reuses for all blocks, and conversions to and from it.

Fresh arrays of this size are mapped page by page and unmapped at once, which costs more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from atoll.wire.encoding import Encoding, as_stored, decode, encode

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PIECE = 1 << 12
"""Elements per step of a conversion that makes temporary arrays: small enough for the heap to keep them."""


class Workspace:
    """Memory for blocks of ``block`` elements: three float64 arrays, and 8 + 4 bytes per state tensor for each set.

    Args:
        block: maximum number of elements of a block.
        sets: number of results that may be in use at a time; ``next_set`` returns them in turn.
        state_names: the optimiser's tensors.
    """

    def __init__(self, block: int, sets: int, state_names: Iterable[str]) -> None:
        self.mean = np.empty(block)
        self.weights = np.empty(block)
        self.new_weights = np.empty(block)
        names = tuple(state_names)
        self._sets = cycle(ResultSet(block, names) for _ in range(sets))

    def next_set(self) -> ResultSet:
        """The least recently used set of results."""
        return next(self._sets)


class ResultSet:
    """The results of one block until they are written: encoded weights, and float32 state by name."""

    def __init__(self, block: int, state_names: tuple[str, ...]) -> None:
        self._encoded = np.empty(block * np.dtype(np.float64).itemsize, np.uint8)
        self._state = {name: np.empty(block, np.float32) for name in state_names}

    def state(self, size: int) -> dict[str, npt.NDArray[np.float32]]:
        """The state arrays for a block of ``size`` elements."""
        return {name: array[:size] for name, array in self._state.items()}

    def values(self, size: int, encoding: Encoding) -> npt.NDArray[Any]:
        """The array for a block's ``size`` weights, in the encoding's storage dtype."""
        return self._encoded[: size * encoding.storage.itemsize].view(encoding.storage)

    def encode(self, values: npt.NDArray[np.float64], encoding: Encoding) -> npt.NDArray[np.generic]:
        """The values in the encoding's storage dtype, rounded to nearest, ties to even; overflow becomes infinite."""
        stored = self.values(values.size, encoding)
        with np.errstate(over="ignore"):
            if encoding is Encoding.BFLOAT16:
                for cut in _pieces(values.size):
                    stored[cut] = encode(values[cut], encoding)
            else:
                np.copyto(stored, values, casting="same_kind")
        return stored


def decode_into(out: npt.NDArray[np.float64], payload: Buffer, encoding: Encoding) -> None:
    """Widen the payload, exactly, into ``out``, which has the same number of elements."""
    stored = as_stored(payload, encoding)
    if encoding is Encoding.BFLOAT16:
        for cut in _pieces(out.size):
            out[cut] = decode(stored[cut].data, encoding)
    else:
        np.copyto(out, stored.view(encoding.storage), casting="same_kind")


def _pieces(size: int) -> Iterator[slice]:
    return (slice(start, start + _PIECE) for start in range(0, size, _PIECE))
