"""The elements of an upload: their sources, and their division into chunks."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from atoll.client.errors import UpdateError
from atoll.client.model import as_float32
from atoll.wire.chunks import ElementRange
from atoll.wire.encoding import PLAIN, Encoding, FloatArray, encode
from atoll.wire.layout import Dtype, Layout

if TYPE_CHECKING:
    from atoll.client.model import Model
    from atoll.wire.layout import TensorSpan

Flat = npt.NDArray[np.generic]


class ElementSource(Protocol):
    """Source of the encoded elements of any range; a silo's rank has one for its own shard."""

    def read(self, elements: ElementRange, encoding: Encoding, out: Flat) -> None:
        """Write the payload of the range's elements, in order, into ``out``.

        ``out`` has ``encoding``'s storage dtype and shape ``(stored_items(encoding, elements.size),)``: one item per
        element for plain floats.
        """
        ...


@dataclass(frozen=True)
class Shard:
    """The ranges that one uploader sends, and their source. An edge client sends all ranges."""

    ranges: tuple[ElementRange, ...]
    source: ElementSource

    @classmethod
    def whole(cls, layout: Layout, source: ElementSource) -> Shard:
        """All elements of a layout as one run."""
        return cls((ElementRange.run(0, layout.size),), source)

    @property
    def size(self) -> int:
        """Number of elements."""
        return sum(span.size for span in self.ranges)


class DeltaSource:
    """local - global, or a given delta, computed piece by piece directly from the arrays.

    Differences are computed in float32 (float64 for float64 tensors), then written in the encoding. Memory: one chunk,
    and for quantised blocks its float32 values too; no copy of the model. Only a tensor that is not C-contiguous is
    copied while its elements are sent.

    Raises:
        UpdateError: from ``read``, naming tensor and element, if a value is not finite or beyond ``max_abs``.
    """

    def __init__(
        self, model: Model, *, weights: Mapping[str, npt.NDArray[Any]], is_delta: bool, max_abs: float
    ) -> None:
        self._model = model
        self._weights = weights
        self._is_delta = is_delta
        self._max_abs = max_abs
        self._spans = model.layout.spans
        self._starts = [span.start for span in self._spans]
        self._flat: tuple[str, Flat] = ("", np.empty(0))
        self._values = np.empty(0, np.float32)

    def read(self, elements: ElementRange, encoding: Encoding, out: Flat) -> None:
        """See ``ElementSource.read``."""
        if encoding in PLAIN:
            self._read(elements, encoding, out)
            return
        if self._values.size < elements.size:
            self._values = np.empty(elements.size, np.float32)
        values = self._values[: elements.size]
        self._read(elements, Encoding.FLOAT32, values)
        out[:] = encode(values, encoding)

    def _read(self, elements: ElementRange, encoding: Encoding, out: Flat) -> None:
        position = 0
        for start, stop in runs_of(elements):
            for span, first, last in self._pieces(start, stop):
                piece = out[position : position + last - first]
                self._write(piece, span, first, last, encoding)
                position += last - first

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[TensorSpan, int, int]]:
        """Elements [start, stop) split at tensor borders: each tensor, with its first and last + 1 element."""
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            span = self._spans[index]
            until = min(stop, span.stop)
            yield span, start - span.start, until - span.start
            start, index = until, index + 1

    def _write(self, out: Flat, span: TensorSpan, first: int, last: int, encoding: Encoding) -> None:
        local = _widen(self._flattened(span.spec.name)[first:last], span.spec.dtype)
        delta = local if self._is_delta else self._minus_global(local, out, span, first, last)
        self._check(delta, span, first)
        if delta is not out:
            out[:] = encode(delta, encoding)

    def _minus_global(self, local: FloatArray, out: Flat, span: TensorSpan, first: int, last: int) -> FloatArray:
        """Local - global, written into ``out`` if it has the difference's element type."""
        base = _widen(self._model[span.spec.name].reshape(-1)[first:last], span.spec.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            if out.dtype == local.dtype == base.dtype:
                return cast("FloatArray", np.subtract(local, base, out=out))
            return cast("FloatArray", np.subtract(local, base))

    def _flattened(self, name: str) -> Flat:
        """The tensor flattened; a tensor that must be copied is kept for the following chunks."""
        known, flat = self._flat
        if known != name:
            flat = self._weights[name].reshape(-1)
            self._flat = (name, flat)
        return flat

    def _check(self, delta: FloatArray, span: TensorSpan, first: int) -> None:
        if -self._max_abs <= delta.min() and delta.max() <= self._max_abs:  # both are false for NaN
            return
        wrong = int(np.argmin(np.abs(delta) <= self._max_abs))
        index = tuple(int(i) for i in np.unravel_index(first + wrong, span.spec.shape))
        raise UpdateError(
            f"local - global of tensor {span.spec.name!r} is {delta[wrong]} at {list(index)}; the server accepts "
            f"finite values of magnitude up to {self._max_abs:g}: lower the learning rate or clip the update"
        )


def runs_of(elements: ElementRange) -> Iterator[tuple[int, int]]:
    """The first and the last + 1 element of each run of consecutive elements."""
    if elements.contiguous:
        yield elements.offset, elements.offset + elements.size
        return
    for index in range(elements.count):
        start = elements.offset + index * elements.stride
        yield start, start + elements.block


def cut_ranges(ranges: Iterable[ElementRange], chunk_elements: int, group: int = 1) -> Iterator[ElementRange]:
    """The same elements in ranges of at most ``chunk_elements``, in the given order.

    A strided range is split between its blocks; a block that is larger than a chunk is split itself. Each piece but the
    last one of a range (or of a split block) has a multiple of ``group`` elements, provided that ``chunk_elements`` is
    a multiple of ``group`` and, in a strided range, that enough whole blocks for a multiple fit in a chunk.
    """
    for span in ranges:
        if span.contiguous:
            yield from _cut_run(span.offset, span.size, chunk_elements)
        elif span.block >= chunk_elements:
            for index in range(span.count):
                yield from _cut_run(span.offset + index * span.stride, span.block, chunk_elements)
        else:
            blocks, together = chunk_elements // span.block, group // math.gcd(group, span.block)
            yield from _cut_strided(span, blocks - blocks % together or blocks)


def _cut_run(offset: int, length: int, chunk_elements: int) -> Iterator[ElementRange]:
    for start in range(offset, offset + length, chunk_elements):
        yield ElementRange.run(start, min(chunk_elements, offset + length - start))


def _cut_strided(span: ElementRange, blocks: int) -> Iterator[ElementRange]:
    for first in range(0, span.count, blocks):
        count = min(blocks, span.count - first)
        offset = span.offset + first * span.stride
        yield ElementRange(offset, span.block, span.stride, count)


def _widen(values: Flat, dtype: Dtype) -> FloatArray:
    if dtype is Dtype.FLOAT64:
        return values.astype(np.float64, copy=False)
    return as_float32(values, dtype)
