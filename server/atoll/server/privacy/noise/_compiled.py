"""The loops, compiled at their first use, and imported only then, because importing numba takes a third of a second."""

from __future__ import annotations

import numpy as np

from atoll.server.aggregation._jit import array_type, compiled, scalar_type, tuple_type
from atoll.server.privacy.noise import _loops

_WORDS = array_type(np.uint64)
_SHAPE = tuple_type(np.int64, 2)
_SLOPES = tuple_type(np.float64, 2)
_INTEGERS = array_type(np.int64, writable=True)
_BYTES = array_type(np.uint8, writable=True)


def first() -> _loops.First:
    """Decides most elements, 16,384 at a time."""
    return compiled(_loops.first, (_WORDS, array_type(np.uint8), _SHAPE, _SLOPES, _INTEGERS, _BYTES))


def gather() -> _loops.Gather:
    """Gathers the elements that ``first`` leaves open."""
    return compiled(
        _loops.gather, (_WORDS, _BYTES, scalar_type(np.int64), _INTEGERS, array_type(np.uint64, writable=True))
    )


def second() -> _loops.Second:
    """Decides most of the elements that ``gather`` has collected."""
    return compiled(_loops.second, (_WORDS, _WORDS, _SHAPE, _SLOPES, _INTEGERS, _BYTES))
