"""Server optimisers against the formulas of Reddi et al. 2021, Algorithm 2, and Hsu et al. 2019, in plain float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.aggregation import OPTIMISER_NAMES, AggregationError, Applied, ServerOptimiser, optimiser_named
from atoll.server.aggregation.optimisers import FedAdam, FedYogi, State

Rule = Callable[[float, float], float]


@dataclass
class Reference:
    """One scalar weight, in the papers' notation; state is float64 throughout."""

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    momentum: float = 0.9
    nesterov: bool = False
    m: float = 0.0
    v: float = field(default=math.nan)

    def fedavg(self, x: float, delta: float) -> float:
        return x + self.lr * delta

    def fedavgm(self, x: float, delta: float) -> float:
        self.m = self.momentum * self.m + delta
        return x + self.lr * (delta + self.momentum * self.m if self.nesterov else self.m)

    def fedadagrad(self, x: float, delta: float) -> float:
        return self._adaptive(x, delta, lambda v, square: v + square)

    def fedadam(self, x: float, delta: float) -> float:
        return self._adaptive(x, delta, lambda v, square: self.beta2 * v + (1 - self.beta2) * square)

    def fedyogi(self, x: float, delta: float) -> float:
        return self._adaptive(
            x, delta, lambda v, square: v - (1 - self.beta2) * square * math.copysign(v != square, v - square)
        )

    def _adaptive(self, x: float, delta: float, second: Rule) -> float:
        self.m = self.beta1 * self.m + (1 - self.beta1) * delta
        self.v = second(self.tau**2 if math.isnan(self.v) else self.v, delta**2)
        return x + self.lr * self.m / (math.sqrt(self.v) + self.tau)


def settings_of(name: str) -> dict[str, float]:
    names = {"fedavg": ["lr"], "fedavgm": ["lr", "momentum"], "fedadagrad": ["lr", "beta1", "tau"]}
    return {key: getattr(Reference, key) for key in names.get(name, ["lr", "beta1", "beta2", "tau"])}


def rounds_of(optimiser: ServerOptimiser, start: npt.NDArray[np.float64], updates: npt.NDArray[np.float64]) -> State:
    """The weights and the state after all rounds."""
    state, weights = optimiser.init(start.size), start
    for update in updates:
        applied = optimiser.apply(state, weights, update)
        state, weights = applied.state, applied.weights
    return {**state, "weights": weights.astype(np.float32)}


@pytest.mark.parametrize("name", OPTIMISER_NAMES)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.sampled_from([1e-5, 1e-2, 1.0, 10.0]))
def test_several_rounds_follow_the_paper(name: str, seed: int, rounds: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    start, updates = rng.standard_normal(40), rng.standard_normal((rounds, 40)) * scale
    updates[:, 0] = 0.0
    found = rounds_of(optimiser_named(name, settings_of(name)), start, updates)
    for at in range(40):
        reference, expected = Reference(), start[at]
        for update in updates[:, at]:
            expected = getattr(reference, name)(expected, update)
        assert found["weights"][at] == pytest.approx(expected, rel=1e-5, abs=1e-6)
        if "momentum" in found:
            assert found["momentum"][at] == pytest.approx(reference.m, rel=1e-5, abs=1e-6 * scale)
        if "second_moment" in found:
            assert found["second_moment"][at] == pytest.approx(reference.v, rel=1e-5)


def test_nesterov_is_the_outer_step_of_diloco() -> None:
    """Equal to torch's SGD(momentum=0.9, nesterov=True) on the gradient g = -Δ: b = 0.9 b + g; w -= lr (g + 0.9 b)."""
    optimiser = optimiser_named("fedavgm", {"lr": 0.7, "momentum": 0.9, "nesterov": True})
    updates = np.array([[1.0], [0.5], [-2.0]])
    weights, buffer = 3.0, 0.0
    for (delta,) in updates.tolist():
        buffer = 0.9 * buffer - delta
        weights -= 0.7 * (-delta + 0.9 * buffer)
    assert rounds_of(optimiser, np.array([3.0]), updates)["weights"][0] == pytest.approx(weights, rel=1e-6)


def test_fedavg_at_lr_1_adds_the_mean_update_exactly() -> None:
    rng = np.random.default_rng(0)
    weights, update = rng.standard_normal((2, 100))
    assert np.array_equal(optimiser_named("fedavg").apply({}, weights, update).weights, weights + update)


def test_yogi_leaves_a_second_moment_that_equals_the_square() -> None:
    """sign(0) = 0 in v - (1 - beta2) Δ² sign(v - Δ²); v starts at tau²."""
    optimiser = FedYogi(tau=0.5)
    applied = optimiser.apply(optimiser.init(2), np.zeros(2), np.array([0.5, -0.5]))
    assert applied.state["second_moment"].tolist() == [0.25, 0.25]


def test_compiled_arithmetic_is_neither_fused_nor_reordered() -> None:
    """Numpy rounds after each operation; equal bits show that the compiled loop does too, on any machine."""
    rng = np.random.default_rng(8)
    weights, update = rng.standard_normal((2, 10_000))
    state = {"momentum": rng.standard_normal(10_000), "second_moment": rng.random(10_000)}
    state32 = {name: value.astype(np.float32) for name, value in state.items()}
    found = FedAdam(lr=0.3).apply(state32, weights, update)
    first = 0.9 * state32["momentum"].astype(np.float64) + (1.0 - 0.9) * update
    second = 0.99 * state32["second_moment"].astype(np.float64) + (1.0 - 0.99) * np.square(update)
    assert found.weights.tobytes() == (weights + 0.3 * first / (np.sqrt(second) + 1e-3)).tobytes()
    assert found.state["momentum"].tobytes() == first.astype(np.float32).tobytes()
    assert found.state["second_moment"].tobytes() == second.astype(np.float32).tobytes()


@pytest.mark.parametrize("name", OPTIMISER_NAMES)
def test_blocks_of_any_size_give_the_same_bits_and_inputs_stay_as_they_are(name: str) -> None:
    optimiser = optimiser_named(name)
    rng = np.random.default_rng(2)
    weights, update = rng.standard_normal((2, 1001))
    whole = optimiser.apply(optimiser.init(1001), weights, update)
    again = optimiser.apply(whole.state, whole.weights, update)
    for step in (1, 7, 500):
        for start in range(0, 1001, step):
            cut = slice(start, start + step)
            part = {key: value[cut].copy() for key, value in whole.state.items()}
            kept = {key: value.copy() for key, value in part.items()}
            for array in part.values():
                array.flags.writeable = False
            applied = optimiser.apply(part, whole.weights[cut], update[cut])
            assert np.array_equal(applied.weights, again.weights[cut])
            for key, value in applied.state.items():
                assert np.array_equal(value, again.state[key][cut])
                assert value.dtype == np.float32
                assert np.array_equal(part[key], kept[key])


@pytest.mark.parametrize("name", OPTIMISER_NAMES)
def test_results_can_go_to_memory_that_is_given(name: str) -> None:
    optimiser = optimiser_named(name)
    weights, update = np.random.default_rng(3).standard_normal((2, 50))
    state = optimiser.init(50)
    fresh = optimiser.apply(state, weights, update)
    out = Applied(np.full(50, np.nan), {key: np.full(50, np.nan, np.float32) for key in state})
    assert optimiser.apply(state, weights, update, out) is out
    assert np.array_equal(out.weights, fresh.weights)
    for key, value in fresh.state.items():
        assert np.array_equal(out.state[key], value)


def test_state_tensors_are_declared() -> None:
    declared = {name: optimiser_named(name).state_names for name in OPTIMISER_NAMES}
    assert declared["fedavg"] == ()
    assert declared["fedavgm"] == ("momentum",)
    for name in ("fedadagrad", "fedadam", "fedyogi"):
        assert declared[name] == ("momentum", "second_moment")
    for name in OPTIMISER_NAMES:
        assert tuple(optimiser_named(name).init(3)) == declared[name]


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("sgd", {}, "allowed are fedavg, fedavgm, fedadagrad, fedadam, fedyogi"),
        ("fedavg", {"momentum": 0.9}, "allowed are lr"),
        ("fedavg", {"lr": 0.0}, "above 0"),
        ("fedavgm", {"momentum": 1.0}, "momentum 1.0"),
        ("fedadam", {"beta2": -0.1}, "beta2 -0.1"),
        ("fedyogi", {"tau": 0.0}, "tau 0.0"),
        ("fedadagrad", {"lr": float("nan")}, "lr nan"),
    ],
)
def test_refusals_name_the_value_and_what_is_allowed(name: str, settings: dict[str, float], says: str) -> None:
    with pytest.raises(AggregationError) as caught:
        optimiser_named(name, settings)
    assert says in str(caught.value.detail)
