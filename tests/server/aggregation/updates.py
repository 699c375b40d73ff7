"""Updates for the tests of aggregation: values cut into chunks, and their sum in Python's integers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from atoll.server.aggregation import Accumulator, Grid
from atoll.wire.chunks import ChunkHeader, ElementRange, header_of
from atoll.wire.encoding import Encoding, FloatArray, decode, encode

Piece = tuple[ChunkHeader, memoryview]


@dataclass(frozen=True)
class Update:
    """One participant's update: the values as they arrive (after their encoding), and the chunks that carry them."""

    name: str
    examples: int
    values: npt.NDArray[np.float64]
    pieces: tuple[Piece, ...]

    def fold_into(self, accumulator: Accumulator) -> None:
        accumulator.fold(self.name, accumulator.grid.weight_of(self.examples), self.pieces)


def piece(target: ElementRange, values: FloatArray, encoding: Encoding) -> Piece:
    payload = encode(values, encoding).tobytes()
    return header_of(target, encoding, payload), memoryview(payload)


def indices(target: ElementRange) -> npt.NDArray[np.int64]:
    """The elements that a range names, in the order of its payload."""
    blocks = target.offset + target.stride * np.arange(target.count)[:, None]
    return (blocks + np.arange(target.block)[None, :]).reshape(-1)


def exact_fold(values: Sequence[float], weight: int, grid: Grid) -> list[int]:
    """``rint(x * 2**f) * w`` in rational arithmetic: ``round`` of a Fraction goes to even on ties."""
    return [round(Fraction(float(value)) * (1 << grid.fraction_bits)) * weight for value in values]


def update_of(name: str, examples: int, sent: FloatArray, cuts: Sequence[tuple[ElementRange, Encoding]]) -> Update:
    pieces = tuple(piece(target, sent[indices(target)], encoding) for target, encoding in cuts)
    values = np.zeros(sent.size)
    for (target, encoding), (_, payload) in zip(cuts, pieces, strict=True):
        values[indices(target)] = decode(payload, encoding, target.size)
    return Update(name, examples, values, pieces)


def run_cuts(size: int, step: int, encodings: Sequence[Encoding]) -> list[tuple[ElementRange, Encoding]]:
    """Contiguous runs of ``step`` elements with the encodings taken in turn."""
    starts = range(0, size, step)
    return [
        (ElementRange.run(start, min(step, size - start)), encodings[index % len(encodings)])
        for index, start in enumerate(starts)
    ]


def column_cuts(rows: int, columns: int, parts: int, encoding: Encoding) -> Iterator[tuple[ElementRange, Encoding]]:
    """A matrix cut by columns, as tensor parallelism does."""
    width = columns // parts
    for part in range(parts):
        yield ElementRange(part * width, width, columns, rows), encoding


@st.composite
def cohorts(draw: st.DrawFn, max_updates: int = 6) -> list[Update]:
    """Some updates of one model, in any mixture of chunkings and encodings, strided or not."""
    rows, parts = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    columns = parts * draw(st.integers(1, 40))
    updates = []
    for index in range(draw(st.integers(1, max_updates))):
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        scale = draw(st.sampled_from([1e-30, 1e-6, 1e-3, 1.0, 5.0]))
        sent = np.clip(rng.standard_normal(rows * columns) * scale, -31.0, 31.0)
        encodings = draw(st.lists(st.sampled_from(list(Encoding)), min_size=1, max_size=3))
        if draw(st.booleans()):
            cuts = list(column_cuts(rows, columns, parts, encodings[0]))
        else:
            cuts = run_cuts(rows * columns, draw(st.integers(1, rows * columns)), encodings)
        updates.append(update_of(f"p{index}", draw(st.integers(1, 5000)), sent, draw(st.permutations(cuts))))
    return updates


def total_examples(updates: Sequence[Update]) -> int:
    return sum(update.examples for update in updates)
