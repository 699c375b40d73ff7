"""Makes the next model block by block: merges the partial sums, applies the server optimiser, writes the result.

The old model and state are read from memory maps. The new ones go to sinks that hash and store each byte on arrival, so
there is no second pass. About 10 MiB of memory suffices for any model size (``workspace``). Nothing becomes visible
here: the caller commits the sinks once ``write_next_model`` has returned, and discards them if it raises.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from atoll.server.aggregation import kernel
from atoll.server.aggregation.background import MAX_PENDING, BackgroundWriter, Sink
from atoll.server.aggregation.errors import ReleaseError
from atoll.server.aggregation.iterates import moved_mean
from atoll.server.aggregation.optimisers import Applied, FedAvg, ServerOptimiser, State
from atoll.server.aggregation.partial import PartialSum, check_not_empty, mean_block
from atoll.server.aggregation.workspace import Workspace, decode_into
from atoll.wire.chunks import ElementRange
from atoll.wire.encoding import Encoding, decode
from atoll.wire.layout import Dtype, Layout, TensorSpan

if TYPE_CHECKING:
    from typing_extensions import Buffer

RELEASE_BLOCK = 1 << 17
"""Elements per block: the float64 arrays of a block are 1 MiB each and mostly stay in a core's cache."""

STATE_BYTES = 4
"""Bytes of one element of an optimiser's state tensor."""
_MODEL, _MEAN = "model", "mean"  # cannot be the names of state tensors
_AVERAGE = FedAvg()


@runtime_checkable
class Readable(Protocol):
    """Bytes that are verified when they are read; ``atoll.server.stores.Blob`` is one."""

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        ...

    def read(self, start: int, stop: int, /) -> memoryview:
        """The bytes [start, stop)."""
        ...


@dataclass(frozen=True, slots=True)
class OldModel:
    """The model and state that the round started from.

    Attributes:
        model: the model's blob, in its layout.
        state: the optimiser's tensors by name, float32 of N elements each; empty before the first release.
    """

    model: Buffer | Readable
    state: Mapping[str, Buffer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewModel:
    """Destination of the result: empty sinks, which the caller commits."""

    model: Sink
    state: Mapping[str, Sink] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IterateMean:
    """The mean of the released models, updated with each release.

    Attributes:
        old: its blob so far, in the model's layout; None before the first release.
        share: weight of the new model in the new mean (``iterates.share_of``).
        sink: destination of the new mean; empty, and committed by the caller.
    """

    old: Buffer | Readable | None
    share: float
    sink: Sink

    def piece(self, block: _Block, new: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The block of the new mean."""
        before = None if self.old is None else _bytes_of(self.old, block)
        return moved_mean(before, new.data, self.share, block.encoding)


@dataclass(frozen=True, slots=True)
class WrittenModel:
    """Summary of a written model.

    Attributes:
        updates: number of updates in the mean.
        total_weight: sum of their integer weights.
        mean_update_norm: L2 norm of the mean update.
    """

    updates: int
    total_weight: int
    mean_update_norm: float


@dataclass(frozen=True, slots=True)
class _Block:
    """Elements [start, stop) of one type, and where their bytes start in the model's blob.

    A ``kept`` block is outside the round's fragment: its elements do not change.
    """

    start: int
    stop: int
    byte_start: int
    encoding: Encoding
    averaged: bool
    kept: bool

    @property
    def size(self) -> int:
        return self.stop - self.start


def write_next_model(
    layout: Layout,
    partial: PartialSum,
    optimiser: ServerOptimiser,
    old: OldModel,
    new: NewModel,
    averaged: Set[str] = frozenset(),
    fragment: ElementRange | None = None,
    iterates: IterateMean | None = None,
) -> WrittenModel:
    """Write the next model and optimiser state to their sinks.

    Args:
        layout: of the model.
        partial: the round's sum; pass several as one ``MergedSum``.
        optimiser: the server optimiser.
        old: the model and state that the round started from.
        new: destination of the result.
        averaged: names of tensors that take the plain mean under any optimiser: buffers such as batch-norm statistics,
            which must not gather momentum. Their optimiser state does not change.
        fragment: the consecutive whole tensors that the round updates and sums; None for all. The weights and state of
            all other tensors are copied bit for bit.
        iterates: the mean of the released models, to be updated; None for none.

    Raises:
        ReleaseError: if the inputs do not fit the layout or the optimiser, or a result is not finite (the message
            names the tensor).
        AggregationError: if the sum holds no update.
        Exception: what a sink raised.
    """
    summed = fragment or ElementRange.run(0, layout.size)
    _check_inputs(layout, optimiser, old, new)
    _check_iterates(layout, iterates)
    _check_fragment(layout, partial, summed)
    check_not_empty(partial)
    _check_averaged(layout, averaged)
    squares = []
    work = Workspace(min(RELEASE_BLOCK, layout.size), MAX_PENDING + 1, optimiser.state_names)
    sinks = {_MODEL: new.model, **new.state} | ({} if iterates is None else {_MEAN: iterates.sink})
    with BackgroundWriter(sinks) as writer:
        for block in _blocks(layout, averaged, summed):
            if block.kept:
                writer.append(_with_mean(block, _as_it_is(block, optimiser, old), iterates))
                continue
            rule = _AVERAGE if block.averaged else optimiser
            sums = slice(block.start - summed.offset, block.stop - summed.offset)
            if isinstance(rule, FedAvg) and block.encoding is Encoding.FLOAT32 and not optimiser.state_names:
                pieces, sum_squares = _next_average(layout, block, sums, partial, rule.lr, old, work)
            else:
                mean = mean_block(partial, sums.start, sums.stop, out=work.mean[: block.size])
                sum_squares = kernel.inspect(mean.data, Encoding.FLOAT64).sum_squares
                pieces = _next(block, optimiser, old, work)
                _check_finite(layout, block, pieces)
            squares.append(sum_squares)
            writer.append(_with_mean(block, pieces, iterates))
        writer.finish()
    return WrittenModel(
        updates=len(partial.updates),
        total_weight=partial.total_weight,
        mean_update_norm=math.sqrt(math.fsum(squares)),
    )


def _next_average(
    layout: Layout, block: _Block, sums: slice, partial: PartialSum, lr: float, old: OldModel, work: Workspace
) -> tuple[dict[str, npt.NDArray[np.generic]], float]:
    """FedAvg on float32 in one pass: the block's new weights, and the sum of squares of its mean."""
    new = work.next_set().values(block.size, Encoding.FLOAT32)
    divisor = partial.total_weight * partial.grid.scale
    found = kernel.average(partial.sum_block(sums.start, sums.stop), divisor, lr, _old_bytes(old, block), new)
    pieces: dict[str, npt.NDArray[np.generic]] = {_MODEL: new}
    if not found.finite:
        _check_finite(layout, block, pieces)
    return pieces, found.sum_squares


def _next(
    block: _Block, optimiser: ServerOptimiser, old: OldModel, work: Workspace
) -> dict[str, npt.NDArray[np.generic]]:
    """The block's pieces of the new model and state, in the workspace's next set of results."""
    size, result = block.size, work.next_set()
    weights, mean = work.weights[:size], work.mean[:size]
    decode_into(weights, _old_bytes(old, block), block.encoding)
    state, out = _state_of(block, optimiser, old), Applied(work.new_weights[:size], result.state(size))
    with np.errstate(over="ignore", invalid="ignore"):
        if block.averaged:
            _AVERAGE.apply({}, weights, mean, out)
            for name, values in state.items():
                np.copyto(out.state[name], values)
        else:
            optimiser.apply(state, weights, mean, out)
    return {_MODEL: result.encode(out.weights, block.encoding), **out.state}


def _as_it_is(block: _Block, optimiser: ServerOptimiser, old: OldModel) -> dict[str, npt.NDArray[np.generic]]:
    """A block outside the round's fragment: views of its old weights, and its old or initial state."""
    return {_MODEL: np.frombuffer(_old_bytes(old, block), np.uint8), **_state_of(block, optimiser, old)}


def _with_mean(
    block: _Block, pieces: dict[str, npt.NDArray[np.generic]], mean: IterateMean | None
) -> dict[str, npt.NDArray[np.generic]]:
    return pieces if mean is None else pieces | {_MEAN: mean.piece(block, pieces[_MODEL])}


def _old_bytes(old: OldModel, block: _Block) -> memoryview:
    return _bytes_of(old.model, block)


def _bytes_of(source: Buffer | Readable, block: _Block) -> memoryview:
    start, stop = block.byte_start, block.byte_start + block.size * block.encoding.storage.itemsize
    if isinstance(source, Readable):
        return source.read(start, stop)
    return memoryview(source).cast("B")[start:stop]


def _size_bytes(source: Buffer | Readable) -> int:
    return source.size_bytes if isinstance(source, Readable) else memoryview(source).nbytes


def _state_of(block: _Block, optimiser: ServerOptimiser, old: OldModel) -> State:
    if not old.state:
        return optimiser.init(block.size)
    offset = block.start * STATE_BYTES
    return {
        name: np.frombuffer(memoryview(old.state[name]), "<f4", block.size, offset) for name in optimiser.state_names
    }


def _blocks(layout: Layout, averaged: Set[str], summed: ElementRange) -> Iterator[_Block]:
    """The model's blocks in order; neighbouring tensors of one kind share blocks, which keeps small tensors cheap."""

    def kind(span: TensorSpan) -> tuple[Dtype, bool, bool]:
        kept = not summed.offset <= span.start < summed.stop
        return span.spec.dtype, span.spec.name in averaged, kept

    for (dtype, plain, kept), group in groupby(layout.spans, kind):
        spans = list(group)
        first, end = spans[0], spans[-1].stop
        for start in range(first.start, end, RELEASE_BLOCK):
            byte_start = first.byte_start + (start - first.start) * dtype.itemsize
            yield _Block(start, min(start + RELEASE_BLOCK, end), byte_start, Encoding[dtype.name], plain, kept)


def _check_inputs(layout: Layout, optimiser: ServerOptimiser, old: OldModel, new: NewModel) -> None:
    sizes = {"the old model's bytes": (_size_bytes(old.model), layout.size_bytes)}
    for name, buffer in old.state.items():
        sizes[f"the bytes of state {name!r}"] = (memoryview(buffer).nbytes, layout.size * STATE_BYTES)
    for what, (found, expected) in sizes.items():
        if found != expected:
            raise ReleaseError(f"{what}: {found}, expected {expected} for this layout")
    expected_names = set(optimiser.state_names)
    for what, names in (("old", set(old.state)), ("new", set(new.state))):
        if names != expected_names and (names or what == "new"):
            raise ReleaseError(
                f"{what} state {sorted(names)}, but {optimiser.name} keeps {sorted(expected_names)}",
                "release with the optimiser that the run started with",
            )


def _check_iterates(layout: Layout, iterates: IterateMean | None) -> None:
    if iterates is None or iterates.old is None:
        return
    if (found := _size_bytes(iterates.old)) != layout.size_bytes:
        raise ReleaseError(f"the bytes of the mean of models: {found}, expected {layout.size_bytes} for this layout")


def _check_fragment(layout: Layout, partial: PartialSum, summed: ElementRange) -> None:
    borders = {0, *(span.stop for span in layout.spans)}
    if not summed.contiguous or not {summed.offset, summed.stop} <= borders:
        raise ReleaseError(f"{summed} is not a run of whole tensors of this layout")
    if partial.size != summed.size:
        raise ReleaseError(f"the sum's elements: {partial.size}, expected {summed.size} for this layout")


def _check_averaged(layout: Layout, averaged: Set[str]) -> None:
    if unknown := averaged - {spec.name for spec in layout.tensors}:
        raise ReleaseError(f"tensor {min(unknown)!r} is to be averaged, but the layout has none of that name")


def _check_finite(layout: Layout, block: _Block, pieces: Mapping[str, npt.NDArray[np.generic]]) -> None:
    for name, piece in pieces.items():
        encoding = block.encoding if name == _MODEL else Encoding.FLOAT32
        if not kernel.inspect(piece.data, encoding).finite:
            at = block.start + int(np.argmin(np.isfinite(decode(piece.data, encoding))))
            span = layout.spans[bisect_right([span.start for span in layout.spans], at) - 1]
            raise ReleaseError(
                f"element {at - span.start} of tensor {span.spec.name!r} ({span.spec.dtype.value}) would get a "
                f"{'value' if name == _MODEL else name} that is not finite",
                "lower the server's lr, or keep the tensor in a wider type",
            )
