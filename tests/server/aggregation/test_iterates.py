"""The mean of released models (Polyak and Juditsky 1992), updated by each release."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import pytest

from atoll.server.aggregation import (
    IterateMean,
    NewModel,
    OldModel,
    ReleaseError,
    ServerOptimiser,
    optimiser_named,
    write_next_model,
)
from atoll.server.aggregation.iterates import share_of
from atoll.server.aggregation.next_model import RELEASE_BLOCK
from atoll.wire.chunks import ElementRange
from atoll.wire.layout import Dtype, Layout, TensorSpec
from tests.server.aggregation.test_next_model import blob_of, sum_of, updates_of, values_of

LAYOUT = Layout(
    (
        TensorSpec("a", (RELEASE_BLOCK + 3,), Dtype.FLOAT32),
        TensorSpec("b", (7,), Dtype.FLOAT64),
        TensorSpec("c", (5, 5), Dtype.FLOAT32),
    )
)


def released(
    optimiser: ServerOptimiser, old: OldModel, mean: bytes | None, share: float, fragment: ElementRange | None = None
) -> tuple[bytes, bytes, dict[str, bytes]]:
    """The next model, the next mean, and the optimiser state."""
    model, moved, state = io.BytesIO(), io.BytesIO(), {name: io.BytesIO() for name in optimiser.state_names}
    total = sum_of(updates_of(fragment.size if fragment else LAYOUT.size, seed=len(old.state) + (mean is not None)))
    iterates = IterateMean(mean, share, moved)
    write_next_model(LAYOUT, total, optimiser, old, NewModel(model, state), frozenset(), fragment, iterates)
    return model.getvalue(), moved.getvalue(), {name: sink.getvalue() for name, sink in state.items()}


def test_models_count_alike_until_there_are_enough_and_then_decay() -> None:
    assert [share_of(0.9, number) for number in (1, 2, 4, 10)] == pytest.approx([1, 1 / 2, 1 / 4, 1 / 10])
    assert share_of(0.9, 1000) == pytest.approx(0.1)
    weights = np.zeros(30)
    for number in range(1, 31):
        weights *= 1 - share_of(0.9, number)
        weights[number - 1] = share_of(0.9, number)
    assert weights.sum() == pytest.approx(1)
    assert weights[:10] == pytest.approx(weights[0])
    assert weights[11:] / weights[10:-1] == pytest.approx(1 / 0.9)


@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "fedadam"])
def test_the_mean_is_that_of_the_models_that_were_released(name: str) -> None:
    optimiser, start = optimiser_named(name), np.random.default_rng(3).standard_normal(LAYOUT.size)
    blob, mean, state = blob_of(LAYOUT, start), None, dict[str, bytes]()
    models: list[npt.NDArray[np.float64]] = []
    for number in range(1, 5):
        blob, mean, state = released(optimiser, OldModel(blob, state), mean, share_of(0.6, number))
        models.append(values_of(LAYOUT, blob))
        expected = models[0]
        for count, one in enumerate(models[1:], 2):
            expected = expected + share_of(0.6, count) * (one - expected)
        np.testing.assert_allclose(values_of(LAYOUT, mean), expected, rtol=1e-6, atol=1e-6)
    assert mean != blob


def test_the_first_mean_is_the_first_model() -> None:
    blob, mean, _ = released(optimiser_named("fedavg"), OldModel(blob_of(LAYOUT, np.zeros(LAYOUT.size))), None, 1.0)
    assert mean == blob


def test_the_mean_changes_nothing_of_the_release() -> None:
    optimiser, old = optimiser_named("fedavgm"), OldModel(blob_of(LAYOUT, np.ones(LAYOUT.size)))
    plain, state = io.BytesIO(), {"momentum": io.BytesIO()}
    write_next_model(LAYOUT, sum_of(updates_of(LAYOUT.size, 0)), optimiser, old, NewModel(plain, state))
    blob, _, states = released(optimiser, old, None, 1.0)
    assert (blob, states["momentum"]) == (plain.getvalue(), state["momentum"].getvalue())


def test_outside_a_rounds_fragment_the_mean_moves_towards_what_stays() -> None:
    span = LAYOUT.spans[1]
    part = ElementRange.run(span.start, span.stop - span.start)
    old = OldModel(blob_of(LAYOUT, np.full(LAYOUT.size, 3.0)))
    blob, mean, _ = released(optimiser_named("fedavg"), old, blob_of(LAYOUT, np.ones(LAYOUT.size)), 0.5, part)
    assert np.all(values_of(LAYOUT, mean)[: span.start] == 2)
    np.testing.assert_allclose(values_of(LAYOUT, mean), (values_of(LAYOUT, blob) + 1) / 2, atol=1e-6)


def test_a_mean_of_another_size_is_refused() -> None:
    old = OldModel(blob_of(LAYOUT, np.zeros(LAYOUT.size)))
    with pytest.raises(ReleaseError, match="the bytes of the mean of models: 8, expected"):
        released(optimiser_named("fedavg"), old, bytes(8), 0.5)
