"""Compiled loops over payloads and sums: fold a payload, inspect a payload on arrival, divide the sum.

A payload is read once, in any encoding and at any alignment, without a copy and without the GIL. On a 2-core machine
a float32 fold runs at 0.65 to 0.75 of a plain float32 ``acc += w*x`` (it moves 20 bytes per element against 12), and
inspection at about 0.6 of plain reading; ``python -m benchmarks.fold`` measures both.

Compiling takes about eight seconds once per machine and half a second from numba's cache thereafter. A loop is compiled
at its first use; ``warm`` compiles all of them in advance, in a thread of a server that already serves. Until then
NumPy handles small payloads of plain floats (``_numpy_loops``), with the same bits, so a process with few of them never
loads numba. The cache is ``__pycache__`` beside this file or, if that is read-only, the user's cache directory; set
``NUMBA_CACHE_DIR`` to a directory that the server may write to choose another. If none is writable, every start
compiles, and a warning says so. There are twenty signatures: three loops for six encodings, the division, and the plain
average.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from atoll.server.aggregation import _block_loops, _loops, _numpy_loops
from atoll.server.aggregation._jit import array_type, compiled, scalar_type, tuple_type
from atoll.server.aggregation.errors import AggregationError
from atoll.wire import blocks
from atoll.wire.encoding import PLAIN, Encoding, as_stored, decode, needed
from atoll.wire.errors import ChunkError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from atoll.server.aggregation.grid import Grid
    from atoll.wire.chunks import ElementRange


@dataclass(frozen=True, slots=True)
class _Form:
    """The types of an encoding in the loops: elements, integers of the same width, floats of the same width."""

    widen: _loops.Widen
    values: type[np.generic]
    bits: type[np.integer]
    floats: type[np.floating]


_FORMS = {
    Encoding.FLOAT32: _Form(_loops.from_float, np.float32, np.int32, np.float32),
    Encoding.FLOAT64: _Form(_loops.from_float, np.float64, np.int64, np.float64),
    Encoding.FLOAT16: _Form(_loops.from_float16, np.uint16, np.uint16, np.float16),
    Encoding.BFLOAT16: _Form(_loops.from_bfloat16, np.uint16, np.uint16, np.float32),
}
NUMPY_ELEMENTS = 20_000_000
"""For this many elements NumPy takes a quarter of a second longer than the compiled loops, which take half a second to
load."""
allowance = _numpy_loops.Allowance(NUMPY_ELEMENTS)
"""The work that this process leaves to NumPy; none once ``warm`` or ``warm_for`` has compiled loops."""
_CALLS = 2
"""Calls per update: one inspects it, one folds it."""
_UNPACK = {Encoding.INT8_BLOCK: _block_loops.bytes_of, Encoding.INT4_BLOCK: _block_loops.nibbles_of}


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of one pass over values.

    Attributes:
        finite: whether no value is infinite or NaN.
        max_abs: the largest magnitude; infinite or NaN if not finite.
        sum_squares: sum of the squares in float64, in an order of additions that depends on the number of values
            alone; not meaningful if not finite.
    """

    finite: bool
    max_abs: float
    sum_squares: float


def inspect(payload: Buffer, encoding: Encoding, count: int | None = None) -> Inspection:
    """Inspect the values of one payload in one pass; for quantised blocks the result is that of the decoded values.

    Args:
        payload: the values.
        encoding: of the values.
        count: number of values; needed for quantised blocks.

    Raises:
        ChunkError: if the payload is not a whole number of elements, or no valid payload of quantised blocks.
    """
    form = encoding.form
    if form is not None:
        count = needed(count, encoding)
        scales, packed = blocks.split(payload, form, count)
        largest, sum_squares, lowest = _inspect_blocks_loop(encoding)(scales, packed.view(np.int8), count)
        blocks.check_integers(lowest, form)
        max_abs = _magnitude(largest, Encoding.FLOAT32)
    elif allowance.takes((stored := as_stored(payload, encoding)).size):
        max_abs, sum_squares = _numpy_loops.inspect(decode(stored.data, encoding))
    else:
        seen = _FORMS[encoding]
        mask = np.iinfo(np.dtype(f"i{encoding.storage.itemsize}")).max
        largest, sum_squares = _inspect_loop(encoding)(stored.view(seen.values), stored.view(seen.bits), mask)
        max_abs = _magnitude(largest, encoding)
    return Inspection(math.isfinite(max_abs), max_abs, float(sum_squares))


def combine(inspections: Iterable[Inspection]) -> Inspection:
    """The inspection of all parts together; the order of the parts does not matter."""
    parts = list(inspections)
    return Inspection(
        finite=all(part.finite for part in parts),
        max_abs=float(np.max([part.max_abs for part in parts], initial=0.0)),
        sum_squares=math.fsum(part.sum_squares for part in parts),
    )


def fold(
    sums: npt.NDArray[np.int64],
    target: ElementRange,
    payload: Buffer,
    encoding: Encoding,
    weight: int,
    grid: Grid,
    *,
    factor: float = 1.0,
    first: bool = False,
) -> int:
    """Add ``rint(x * factor * 2**fraction_bits) * weight`` of each value x to its element of ``sums``.

    A negative weight undoes an earlier fold of the same payload, exactly. Quantised blocks are folded directly from the
    payload, with the same result as their decoded values; ``inspect`` has checked that the integers are allowed.

    Args:
        sums: int64 of shape (N,), contiguous and writable.
        target: the elements that the payload names.
        payload: the values, ``target.size`` of them.
        encoding: how they are written.
        weight: integer weight on the grid.
        grid: the round's grid.
        factor: in (0, 1], of an update that is clipped (``Grid.factor``).
        first: overwrite ``sums`` instead of adding to it, which saves reading it.

    Returns:
        The number of values that were not finite or beyond ``grid.max_abs``; those count as 0.

    Raises:
        AggregationError: if payload and target differ in size, the target leaves ``sums`` or a block has an impossible
            scale; nothing was added.
    """
    if target.stop > sums.size:
        raise AggregationError(f"{target} reaches element {target.stop - 1}, the model ends at {sums.size - 1}")
    place = (target.offset, target.block, target.stride, target.count)
    scale, form = grid.scale * factor, encoding.form
    if form is not None:
        try:
            scales, packed = blocks.split(payload, form, target.size)
        except ChunkError as error:
            raise AggregationError(f"{target}: {error}") from error
        return _fold_blocks_loop(encoding, first=first)(
            sums, scales, packed.view(np.int8), place, weight, scale, float(grid.max_abs)
        )
    values = as_stored(payload, encoding)
    if values.size != target.size:
        raise AggregationError(f"{values.size} values for {target}, which names {target.size} elements")
    if allowance.takes(values.size):
        plain = decode(values.data, encoding)
        return _numpy_loops.fold(sums, plain, place, weight, scale, float(grid.max_abs), first=first)
    return _fold_loop(encoding, first=first)(
        sums, values.view(_FORMS[encoding].values), place, weight, scale, float(grid.max_abs)
    )


def mean(sums: npt.NDArray[np.int64], divisor: float, means: npt.NDArray[np.float64]) -> None:
    """Write ``sums / divisor`` to ``means``, of the same shape (n,); round once to float64 and once after dividing."""
    if allowance.takes(sums.size):
        _numpy_loops.mean(sums, divisor, means)
    else:
        _mean_loop()(sums, divisor, means)


def average(
    sums: npt.NDArray[np.int64], divisor: float, lr: float, old: Buffer, new: npt.NDArray[np.float32]
) -> Inspection:
    """Write ``old + lr * sums / divisor`` to ``new``, of the same shape (n,), float32 both.

    Gives the same bits as ``mean``, a float64 product and sum, and one rounding.

    Returns:
        ``finite`` and ``max_abs`` of the new values; ``sum_squares`` of the mean.
    """
    stored = as_stored(old, Encoding.FLOAT32)
    if allowance.takes(sums.size):
        max_abs, sum_squares = _numpy_loops.average(sums, stored, divisor, lr, new)
    else:
        mask = np.iinfo(np.int32).max
        bits, sum_squares = _average_loop()(sums, stored, (divisor, lr), mask, new, new.view(np.int32))
        max_abs = _magnitude(bits, Encoding.FLOAT32)
    return Inspection(math.isfinite(max_abs), max_abs, float(sum_squares))


def warm(given_up: Callable[[], bool] = lambda: False) -> float:
    """Compile every loop now, so that no round waits for it; returns the seconds that it took (0 the next time).

    The loops that most jobs use come first. The adaptive server optimisers are left out: each compiles (0.2 s, once per
    machine) at its first release.

    Args:
        given_up: called before each loop; if it returns True, the remaining loops are not compiled.
    """
    started = time.perf_counter()
    for loop in _loops_by_use():
        if given_up():
            break
        loop()
    else:
        allowance.end()
    return time.perf_counter() - started


def warm_for(encoding: Encoding, *, elements: int, updates: float) -> None:
    """Compile the loops that inspect and fold updates of one encoding, unless NumPy is done sooner.

    Args:
        encoding: of the updates.
        elements: of each.
        updates: how many are expected in this process.
    """
    if encoding in PLAIN and allowance.covers(elements, _CALLS * updates):
        return
    for loop in _loops_of(encoding):
        loop()
    allowance.end()


def _loops_by_use() -> Iterator[Callable[[], object]]:
    usual, *others = PLAIN
    yield from _loops_of(usual)
    yield _average_loop
    yield _mean_loop
    for encoding in (*others, *_UNPACK):
        yield from _loops_of(encoding)


def _loops_of(encoding: Encoding) -> Iterator[Callable[[], object]]:
    blocks_of = encoding in _UNPACK
    yield partial(_inspect_blocks_loop if blocks_of else _inspect_loop, encoding)
    for first in (True, False):
        yield partial(_fold_blocks_loop if blocks_of else _fold_loop, encoding, first=first)


@cache
def _fold_loop(encoding: Encoding, *, first: bool) -> _loops.Fold:
    form = _FORMS[encoding]
    signature = (
        array_type(np.int64, writable=True),
        array_type(form.values),
        tuple_type(np.int64, 4),
        scalar_type(np.int64),
        scalar_type(np.float64),
        scalar_type(np.float64),
    )
    return compiled(_loops.fold_with(form.widen, _loops.put if first else _loops.add), signature)


@cache
def _fold_blocks_loop(encoding: Encoding, *, first: bool) -> _block_loops.FoldBlocks:
    signature = (
        array_type(np.int64, writable=True),
        array_type(np.float32),
        array_type(np.int8),
        tuple_type(np.int64, 4),
        scalar_type(np.int64),
        scalar_type(np.float64),
        scalar_type(np.float64),
    )
    loop = _block_loops.fold_blocks_with(_UNPACK[encoding], _loops.put if first else _loops.add)
    return compiled(loop, signature)


@cache
def _inspect_blocks_loop(encoding: Encoding) -> _block_loops.InspectBlocks:
    signature = (array_type(np.float32), array_type(np.int8), scalar_type(np.int64))
    return compiled(_block_loops.inspect_blocks_with(_UNPACK[encoding]), signature)


@cache
def _mean_loop() -> Callable[[npt.NDArray[np.int64], float, npt.NDArray[np.float64]], None]:
    sums, means = array_type(np.int64), array_type(np.float64, writable=True)
    return compiled(_loops.mean, (sums, scalar_type(np.float64), means))


@cache
def _average_loop() -> Callable[..., tuple[int, float]]:
    signature = (
        array_type(np.int64),
        array_type(np.float32),
        tuple_type(np.float64, 2),
        scalar_type(np.int32),
        array_type(np.float32, writable=True),
        array_type(np.int32, writable=True),
    )
    return compiled(_loops.average, signature)


@cache
def _inspect_loop(encoding: Encoding) -> _loops.Inspect:
    form = _FORMS[encoding]
    signature = (array_type(form.values), array_type(form.bits), scalar_type(form.bits))
    return compiled(_loops.inspect_with(form.widen), signature)


def _magnitude(bits: int, encoding: Encoding) -> float:
    """The magnitude with these bits, as float64."""
    if encoding is Encoding.BFLOAT16:
        bits <<= 16
    floats = np.dtype(_FORMS[encoding].floats)
    return float(np.array(bits, dtype=f"u{floats.itemsize}").view(floats))
