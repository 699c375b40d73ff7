"""Server optimisers: what the mean update does to the model.

Each is a frozen value with two pure functions over a block of elements, in the manner of fedjax: ``init`` gives the
state before the first round, ``apply`` takes state, weights and mean update to new weights and state. Everything is
elementwise, so a model is walked through in blocks of any size with the same result. Arithmetic is float64; state is
kept between rounds as float32.

The mean update Δ = mean(local - global) plays the part of a negative gradient, hence the plus sign in every rule:

- ``fedavg``: w += lr Δ (McMahan et al. 2017 with lr = 1).
- ``fedavgm``: m = momentum m + Δ; w += lr m, or w += lr (Δ + momentum m) with Nesterov's look ahead (Hsu et al. 2019).
  DiLoCo's outer optimiser (Douillard et al. 2023) is ``nesterov`` with momentum 0.9 and lr 0.7.
- ``fedadagrad``, ``fedadam``, ``fedyogi``: Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 2:
  m = beta1 m + (1 - beta1) Δ, the second moment v by the rule of each, w += lr m / (sqrt(v) + tau); v starts at tau²,
  m at zero, and there is no bias correction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from atoll.server.aggregation.errors import AggregationError

Float64s = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]
State = Mapping[str, Float32s]
"""Named state tensors of one block, each float32 of the block's shape (n,)."""

_MOMENTUM = "momentum"
_SECOND_MOMENT = "second_moment"


@dataclass(frozen=True, slots=True)
class Applied:
    """New weights (float64, shape (n,)) and new state of a block."""

    weights: Float64s
    state: State


class ServerOptimiser(Protocol):
    """What ``release`` needs of an optimiser."""

    name: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]]

    def init(self, size: int) -> State:
        """The state of ``size`` elements before the first round."""
        ...

    def apply(self, state: State, weights: Float64s, mean_update: Float64s) -> Applied:
        """One round on a block; all arrays have shape (n,) and none is written to."""
        ...


@dataclass(frozen=True, slots=True)
class FedAvg:
    """Adds the mean update, times the server's learning rate."""

    name: ClassVar[str] = "fedavg"
    state_names: ClassVar[tuple[str, ...]] = ()

    lr: float = 1.0

    def __post_init__(self) -> None:
        _check_lr(self.lr)

    def init(self, size: int) -> State:  # noqa: ARG002 - there is no state
        """No state."""
        return {}

    def apply(self, state: State, weights: Float64s, mean_update: Float64s) -> Applied:
        """W += lr Δ."""
        return Applied(weights + self.lr * mean_update, state)


@dataclass(frozen=True, slots=True)
class FedAvgM:
    """Server momentum, classical or Nesterov."""

    name: ClassVar[str] = "fedavgm"
    state_names: ClassVar[tuple[str, ...]] = (_MOMENTUM,)

    lr: float = 1.0
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        _check_lr(self.lr)
        _check_decay(_MOMENTUM, self.momentum)

    def init(self, size: int) -> State:
        """Zero momentum."""
        return {_MOMENTUM: np.zeros(size, np.float32)}

    def apply(self, state: State, weights: Float64s, mean_update: Float64s) -> Applied:
        """M = momentum m + Δ; w += lr m, or lr (Δ + momentum m)."""
        momentum = self.momentum * state[_MOMENTUM].astype(np.float64) + mean_update
        step = mean_update + self.momentum * momentum if self.nesterov else momentum
        return Applied(weights + self.lr * step, {_MOMENTUM: momentum.astype(np.float32)})


@dataclass(frozen=True, slots=True)
class FedAdagrad:
    """Second moment v = v + Δ²; it only grows. beta1 = 0 gives the paper's experiments."""

    name: ClassVar[str] = "fedadagrad"
    state_names: ClassVar[tuple[str, ...]] = (_MOMENTUM, _SECOND_MOMENT)

    lr: float = 0.01
    beta1: float = 0.9
    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check_adaptive(self.lr, self.tau, beta1=self.beta1)

    def init(self, size: int) -> State:
        """M = 0, v = tau²."""
        return _adaptive_init(size, self.tau)

    def apply(self, state: State, weights: Float64s, mean_update: Float64s) -> Applied:
        """Algorithm 2 of the paper with v = v + Δ²."""
        second = state[_SECOND_MOMENT].astype(np.float64) + np.square(mean_update)
        momentum = _first_moment(state, mean_update, self.beta1)
        return _adaptive_step(weights, momentum, second, self.lr, self.tau)


@dataclass(frozen=True, slots=True)
class FedAdam:
    """Second moment v = beta2 v + (1 - beta2) Δ²."""

    name: ClassVar[str] = "fedadam"
    state_names: ClassVar[tuple[str, ...]] = (_MOMENTUM, _SECOND_MOMENT)

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check_adaptive(self.lr, self.tau, beta1=self.beta1, beta2=self.beta2)

    def init(self, size: int) -> State:
        """M = 0, v = tau²."""
        return _adaptive_init(size, self.tau)

    def apply(self, state: State, weights: Float64s, mean_update: Float64s) -> Applied:
        """Algorithm 2 of the paper with v = beta2 v + (1 - beta2) Δ²."""
        old = state[_SECOND_MOMENT].astype(np.float64)
        second = self.beta2 * old + (1.0 - self.beta2) * np.square(mean_update)
        momentum = _first_moment(state, mean_update, self.beta1)
        return _adaptive_step(weights, momentum, second, self.lr, self.tau)


@dataclass(frozen=True, slots=True)
class FedYogi:
    """Second moment v = v - (1 - beta2) Δ² sign(v - Δ²): moves towards Δ² by at most (1 - beta2) Δ²."""

    name: ClassVar[str] = "fedyogi"
    state_names: ClassVar[tuple[str, ...]] = (_MOMENTUM, _SECOND_MOMENT)

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check_adaptive(self.lr, self.tau, beta1=self.beta1, beta2=self.beta2)

    def init(self, size: int) -> State:
        """M = 0, v = tau²."""
        return _adaptive_init(size, self.tau)

    def apply(self, state: State, weights: Float64s, mean_update: Float64s) -> Applied:
        """Algorithm 2 of the paper with v = v - (1 - beta2) Δ² sign(v - Δ²)."""
        old = state[_SECOND_MOMENT].astype(np.float64)
        square = np.square(mean_update)
        second = old - (1.0 - self.beta2) * square * np.sign(old - square)
        momentum = _first_moment(state, mean_update, self.beta1)
        return _adaptive_step(weights, momentum, second, self.lr, self.tau)


_OPTIMISERS = {cls.name: cls for cls in (FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi)}
OPTIMISER_NAMES: tuple[str, ...] = tuple(_OPTIMISERS)


def optimiser_named(name: str, settings: Mapping[str, float] | None = None) -> ServerOptimiser:
    """The optimiser of this name; what ``settings`` leaves out keeps its default.

    Raises:
        AggregationError: for an unknown name or setting, or a value out of range.
    """
    if name not in _OPTIMISERS:
        raise AggregationError(f"no server optimiser {name!r}", f"allowed are {', '.join(OPTIMISER_NAMES)}")
    cls = _OPTIMISERS[name]
    allowed = [field.name for field in fields(cls)]
    if unknown := sorted(set(settings or {}) - set(allowed)):
        raise AggregationError(f"{name} has no setting {unknown[0]!r}", f"allowed are {', '.join(allowed)}")
    return cls(**dict[str, Any](settings or {}))


def _adaptive_init(size: int, tau: float) -> State:
    return {_MOMENTUM: np.zeros(size, np.float32), _SECOND_MOMENT: np.full(size, tau * tau, np.float32)}


def _first_moment(state: State, mean_update: Float64s, beta1: float) -> Float64s:
    return beta1 * state[_MOMENTUM].astype(np.float64) + (1.0 - beta1) * mean_update


def _adaptive_step(weights: Float64s, momentum: Float64s, second: Float64s, lr: float, tau: float) -> Applied:
    state = {_MOMENTUM: momentum.astype(np.float32), _SECOND_MOMENT: second.astype(np.float32)}
    return Applied(weights + lr * momentum / (np.sqrt(second) + tau), state)


def _check_adaptive(lr: float, tau: float, **decays: float) -> None:
    _check_lr(lr)
    if not (np.isfinite(tau) and tau > 0):
        raise AggregationError(f"tau {tau} is out of range", "allowed are finite values above 0, for example 1e-3")
    for name, value in decays.items():
        _check_decay(name, value)


def _check_lr(lr: float) -> None:
    if not (np.isfinite(lr) and lr > 0):
        raise AggregationError(f"server lr {lr} is out of range", "allowed are finite values above 0, for example 1.0")


def _check_decay(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise AggregationError(f"{name} {value} is out of range", "allowed are values from 0 to below 1")
