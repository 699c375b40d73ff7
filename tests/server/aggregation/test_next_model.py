from __future__ import annotations

import io
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.server.aggregation import (
    OPTIMISER_NAMES,
    Accumulator,
    AggregationError,
    MergedSum,
    NewModel,
    OldModel,
    PartialSum,
    ReleaseError,
    ServerOptimiser,
    WrittenModel,
    grid_for,
    optimiser_named,
    write_next_model,
)
from atoll.server.aggregation.next_model import RELEASE_BLOCK
from atoll.server.ingest.partial_file import PartialFile, write_partial
from atoll.wire.chunks import ElementRange, header_of
from atoll.wire.encoding import Encoding, decode, encode
from atoll.wire.layout import Dtype, Layout, TensorSpec
from tests.properties import examples
from tests.server.aggregation.updates import Update, run_cuts, update_of

FEDAVG = optimiser_named("fedavg")


class Nowhere:
    """A sink that keeps nothing."""

    def write(self, piece: object, /) -> None:
        del piece


def blob_of(layout: Layout, values: npt.NDArray[np.float64]) -> bytes:
    return b"".join(
        encode(values[span.start : span.stop], Encoding[span.spec.dtype.name]).tobytes() for span in layout.spans
    )


def values_of(layout: Layout, blob: bytes) -> npt.NDArray[np.float64]:
    parts = [
        decode(blob[span.byte_start : span.byte_stop], Encoding[span.spec.dtype.name]).astype(np.float64)
        for span in layout.spans
    ]
    return np.concatenate(parts)


def updates_of(size: int, seed: int, count: int = 3) -> list[Update]:
    rng = np.random.default_rng(seed)
    cuts = run_cuts(size, 100_000, [Encoding.FLOAT32, Encoding.BFLOAT16])
    return [update_of(f"p{i}", i + 1, np.clip(rng.standard_normal(size), -9, 9), cuts) for i in range(count)]


def sum_of(updates: Sequence[Update], total: int = 6) -> Accumulator:
    made = Accumulator(updates[0].values.size, grid_for(total))
    for update in updates:
        update.fold_into(made)
    return made


def released(
    layout: Layout,
    partial: PartialSum,
    optimiser: ServerOptimiser,
    old: OldModel,
    averaged: Sequence[str] = (),
    fragment: ElementRange | None = None,
) -> tuple[WrittenModel, bytes, dict[str, bytes]]:
    model, state = io.BytesIO(), {name: io.BytesIO() for name in optimiser.state_names}
    done = write_next_model(layout, partial, optimiser, old, NewModel(model, state), frozenset(averaged), fragment)
    return done, model.getvalue(), {name: sink.getvalue() for name, sink in state.items()}


def reference(
    layout: Layout, optimiser: ServerOptimiser, blob: bytes, state: Mapping[str, bytes], updates: Sequence[Update]
) -> tuple[bytes, dict[str, npt.NDArray[np.float32]]]:
    """The reference, all in memory at once; the mean is over the values as they arrived."""
    mean = sum(update.values * update.examples for update in updates) / sum(update.examples for update in updates)
    start = {name: np.frombuffer(state[name], np.float32) for name in state} or optimiser.init(layout.size)
    applied = optimiser.apply(start, values_of(layout, blob), np.asarray(mean))
    return blob_of(layout, applied.weights), dict(applied.state)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    sizes = draw(st.lists(st.sampled_from([1, 3, 100, 5000, RELEASE_BLOCK, RELEASE_BLOCK + 1]), min_size=1, max_size=6))
    dtypes = [draw(st.sampled_from(list(Dtype))) for _ in sizes]
    return Layout(tuple(TensorSpec(f"t{i}", (size,), dtypes[i]) for i, size in enumerate(sizes)))


@settings(max_examples=examples(40))
@given(layouts(), st.sampled_from(OPTIMISER_NAMES), st.integers(0, 2**32 - 1))
def test_release_agrees_with_a_release_in_memory(layout: Layout, name: str, seed: int) -> None:
    optimiser = optimiser_named(name)
    blob = blob_of(layout, np.random.default_rng(seed).standard_normal(layout.size))
    state: dict[str, bytes] = {}
    for number in range(2):
        updates = updates_of(layout.size, seed + number)
        expected_blob, expected_state = reference(layout, optimiser, blob, state, updates)
        _, blob, state = released(layout, sum_of(updates), optimiser, OldModel(blob, state))
        found, wanted = values_of(layout, blob), values_of(layout, expected_blob)
        for span in layout.spans:
            at, rtol = slice(span.start, span.stop), _RTOL[span.spec.dtype]
            assert np.allclose(found[at], wanted[at], rtol=rtol, atol=1e-6)
        for key, value in expected_state.items():
            assert np.allclose(np.frombuffer(state[key], np.float32), value, rtol=1e-5, atol=1e-8)


@settings(max_examples=examples(40))
@given(layouts(), st.sampled_from(OPTIMISER_NAMES), st.data())
def test_a_round_over_a_fragment_is_the_whole_round_within_it_and_nothing_outside(
    layout: Layout, name: str, data: st.DataObject
) -> None:
    """Bit for bit, state included: inside the fragment, the result over the whole model; outside, the old values."""
    optimiser, seed = optimiser_named(name), data.draw(st.integers(0, 2**32 - 1))
    tensors = [span.spec.name for span in layout.spans]
    averaged = data.draw(st.lists(st.sampled_from(tensors), unique=True, max_size=2))
    blob = blob_of(layout, np.random.default_rng(seed).standard_normal(layout.size))
    kept = {key: values.tobytes() for key, values in optimiser.init(layout.size).items()}  # what no state amounts to
    state: dict[str, bytes] = {}
    for number in range(2):
        first = data.draw(st.integers(0, len(tensors) - 1))
        last = data.draw(st.integers(first, len(tensors) - 1))
        begin, end = layout.spans[first], layout.spans[last]
        part = ElementRange.run(begin.start, end.stop - begin.start)
        updates, old = updates_of(layout.size, seed + number), OldModel(blob, state)
        _, new_blob, new_state = released(layout, sum_of(updates), optimiser, old, averaged)
        done, found, found_state = released(layout, sum_over(part, updates), optimiser, old, averaged, part)
        expected = blob[: begin.byte_start] + new_blob[begin.byte_start : end.byte_stop] + blob[end.byte_stop :]
        assert found == expected
        for key, was in (state or kept).items():
            inside = slice(4 * part.offset, 4 * part.stop)
            assert found_state[key] == was[: inside.start] + new_state[key][inside] + was[inside.stop :]
        mean = sum(update.values * update.examples for update in updates) / sum(update.examples for update in updates)
        expected_norm = float(np.linalg.norm(np.asarray(mean)[part.offset : part.stop]))
        assert done.mean_update_norm == pytest.approx(expected_norm, rel=1e-4, abs=1e-4)
        blob, state = found, found_state


def test_a_fragment_is_a_run_of_whole_tensors_and_has_its_own_sum() -> None:
    layout = Layout((TensorSpec("a", (4,), Dtype.FLOAT32), TensorSpec("b", (6,), Dtype.FLOAT32)))
    updates, old = updates_of(10, 1), OldModel(bytes(40))
    for part in (ElementRange.run(0, 5), ElementRange.run(3, 7), ElementRange(0, 2, 4, 2), ElementRange.run(4, 7)):
        with pytest.raises(ReleaseError, match="not a run of whole tensors"):
            released(layout, sum_of(updates), FEDAVG, old, fragment=part)
    with pytest.raises(ReleaseError, match="the sum's elements: 10, expected 6"):
        released(layout, sum_of(updates), FEDAVG, old, fragment=ElementRange.run(4, 6))


def sum_over(part: ElementRange, updates: Sequence[Update], total: int = 6) -> Accumulator:
    """The sum of updates of which only the elements of ``part`` were sent."""
    made = Accumulator(part.size, grid_for(total), part.offset)
    for update in updates:
        pieces = []
        for header, payload in update.pieces:
            start, stop = max(header.range.offset, part.offset), min(header.range.stop, part.stop)
            if start < stop:
                size, at = header.encoding.storage.itemsize, header.range.offset
                piece = payload[(start - at) * size : (stop - at) * size]
                pieces.append((header_of(ElementRange.run(start, stop - start), header.encoding, piece), piece))
        made.fold(update.name, made.grid.weight_of(update.examples), pieces)
    return made


_RTOL = {Dtype.FLOAT32: 1e-6, Dtype.FLOAT64: 1e-6, Dtype.FLOAT16: 2.0**-10, Dtype.BFLOAT16: 2.0**-7}


def test_the_bits_do_not_depend_on_how_the_cohort_was_split(tmp_path: Path) -> None:
    layout = Layout((TensorSpec("w", (300, 301), Dtype.FLOAT32), TensorSpec("b", (7,), Dtype.BFLOAT16)))
    optimiser = optimiser_named("fedadam")
    updates = updates_of(layout.size, 4)
    old = OldModel(blob_of(layout, np.zeros(layout.size)))
    _, whole, whole_state = released(layout, sum_of(updates), optimiser, old)
    write_partial(tmp_path / "part", sum_of(updates[:1]))
    parts = MergedSum([sum_of([updates[2], updates[1]]), PartialFile(tmp_path / "part")])
    done, split, split_state = released(layout, parts, optimiser, old)
    assert (split, split_state) == (whole, whole_state)
    assert (done.updates, done.total_weight) == (3, parts.grid.weight_of(6))
    mean = sum(update.values * update.examples for update in updates) / 6
    assert done.mean_update_norm == pytest.approx(float(np.linalg.norm(mean)), rel=1e-9)


def test_fedavg_moves_each_weight_by_the_mean_to_the_last_bit_of_float32() -> None:
    layout = Layout((TensorSpec("w", (5000,), Dtype.FLOAT32),))
    updates = updates_of(5000, 9)
    blob = blob_of(layout, np.random.default_rng(1).standard_normal(5000))
    _, found, _ = released(layout, sum_of(updates), FEDAVG, OldModel(blob))
    grid = sum_of(updates).grid
    on_grid = [np.rint(update.values * grid.scale) * update.examples for update in updates]
    mean = (on_grid[0] + on_grid[1] + on_grid[2]) / (6 * grid.scale)  # integers below 2**53: exact
    assert found == (values_of(layout, blob) + mean).astype(np.float32).tobytes()


def test_averaged_tensors_take_the_plain_mean_and_gather_no_momentum() -> None:
    specs = [TensorSpec(name, (50,), Dtype.FLOAT32) for name in ("w1", "running_mean", "w2")]
    layout = Layout(tuple(specs))
    optimiser = optimiser_named("fedavgm", {"lr": 0.5})
    blob, state = blob_of(layout, np.ones(150)), {"momentum": np.full(150, 3, np.float32).tobytes()}
    updates = [update_of("p", 1, np.full(150, 0.25), run_cuts(150, 150, [Encoding.FLOAT32]))]
    _, found, new = released(layout, sum_of(updates), optimiser, OldModel(blob, state), averaged=["running_mean"])
    values = values_of(layout, found).reshape(3, 50)
    assert values[1].tolist() == [1.25] * 50
    assert np.allclose(values[[0, 2]], 1 + 0.5 * (0.9 * 3 + 0.25))
    assert np.frombuffer(new["momentum"], np.float32)[50:100].tolist() == [3.0] * 50
    with pytest.raises(ReleaseError, match="'running_var'"):
        released(layout, sum_of(updates), optimiser, OldModel(blob, state), averaged=["running_var"])


@pytest.mark.parametrize(
    ("dtype", "weight", "lr"),
    [
        (Dtype.FLOAT16, 65504.0, 1.0),
        (Dtype.BFLOAT16, 3.3e38, 1e37),
        (Dtype.FLOAT32, 3.4e38, 1e37),
        (Dtype.FLOAT64, 1.7e308, 1e307),
    ],
)
def test_an_overflow_names_the_tensor(dtype: Dtype, weight: float, lr: float) -> None:
    layout = Layout((TensorSpec("fine", (90_000,), Dtype.FLOAT32), TensorSpec("hot", (10,), dtype)))
    start = np.zeros(layout.size)
    start[90_004] = weight
    step = np.zeros(layout.size)
    step[90_004] = 32.0
    updates = [update_of("p", 1, step, run_cuts(layout.size, layout.size, [Encoding.FLOAT32]))]
    with pytest.raises(ReleaseError) as caught:
        released(layout, sum_of(updates), optimiser_named("fedavg", {"lr": lr}), OldModel(blob_of(layout, start)))
    assert "element 4 of tensor 'hot'" in str(caught.value)
    assert dtype.value in str(caught.value)


def test_an_old_model_that_is_not_finite_is_not_released() -> None:
    layout = Layout((TensorSpec("w", (4,), Dtype.FLOAT32),))
    old = OldModel(np.array([0, 1, np.nan, 3], np.float32).tobytes())
    with pytest.raises(ReleaseError, match=r"element 2 of tensor 'w'"):
        released(layout, sum_of(updates_of(4, 0)), FEDAVG, old)


def test_optimiser_state_that_overflows_is_refused() -> None:
    layout = Layout((TensorSpec("w", (4,), Dtype.FLOAT64),))
    update = update_of("p", 1, np.full(4, 32.0), run_cuts(4, 4, [Encoding.FLOAT32]))
    state = {"momentum": bytes(16), "second_moment": np.array([0, 0, np.inf, 0], np.float32).tobytes()}
    with pytest.raises(ReleaseError, match=r"element 2 of tensor 'w' .* second_moment that is not finite"):
        released(layout, sum_of([update]), optimiser_named("fedadam"), OldModel(bytes(32), state))


@pytest.mark.parametrize(
    ("size", "blob", "state", "says"),
    [
        (5, 16, {}, "the sum's elements: 5, expected 4"),
        (4, 15, {}, "the old model's bytes: 15, expected 16"),
        (4, 16, {"momentum": 12}, "state 'momentum': 12, expected 16"),
        (4, 16, {"second_moment": 16}, "fedavgm keeps"),
        (4, 16, {"momentum": 16, "second_moment": 16}, "fedavgm keeps"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(size: int, blob: int, state: dict[str, int], says: str) -> None:
    layout = Layout((TensorSpec("w", (4,), Dtype.FLOAT32),))
    old = OldModel(bytes(blob), {name: bytes(length) for name, length in state.items()})
    with pytest.raises(ReleaseError, match=says):
        released(layout, sum_of(updates_of(size, 0)), optimiser_named("fedavgm"), old)
    no_state = NewModel(io.BytesIO())
    with pytest.raises(ReleaseError, match="new state"):
        write_next_model(layout, sum_of(updates_of(4, 0)), optimiser_named("fedavgm"), OldModel(bytes(16)), no_state)


def test_an_empty_sum_is_not_released() -> None:
    layout = Layout((TensorSpec("w", (4,), Dtype.FLOAT32),))
    with pytest.raises(AggregationError, match="no update"):
        released(layout, Accumulator(4, grid_for(1)), FEDAVG, OldModel(bytes(16)))


def test_memory_does_not_grow_with_the_model() -> None:
    """Numpy reports its arrays to tracemalloc: a few blocks of 128 Ki elements, whether 1 or 8 million weights."""
    peaks = []
    for size in (1 << 10, 1 << 20, 1 << 23):  # the first compiles the kernels
        layout = Layout((TensorSpec("w", (size,), Dtype.FLOAT32),))
        updates = [update_of("p", 1, np.full(size, 0.5), run_cuts(size, 1 << 18, [Encoding.FLOAT32]))]
        partial, old = sum_of(updates), OldModel(bytes(size * 4))
        new = NewModel(Nowhere(), {"momentum": Nowhere(), "second_moment": Nowhere()})
        tracemalloc.start()
        write_next_model(layout, partial, optimiser_named("fedyogi"), old, new)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks[1:]) < 16 << 20
    assert peaks[2] - peaks[1] < 1 << 20
