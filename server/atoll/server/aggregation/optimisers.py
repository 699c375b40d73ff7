"""Server optimisers: how the mean update changes the model.

Each is a frozen value with two pure functions over a block of elements, in the manner of fedjax: ``init`` gives the
state before the first round, ``apply`` takes state, weights and mean update to new weights and state. Everything is
elementwise, so a model can be processed in blocks of any size with the same result. Arithmetic is float64; state is
kept between rounds as float32.

The mean update ``Δ = mean(local - global)`` acts as a negative gradient (the negated pseudo-gradient), hence the plus
sign in every rule. The letters follow the papers: ``w`` weights, ``m`` momentum, ``v`` second moment, ``lr`` learning
rate; products are written with ``*``.

- ``fedavg``: ``w += lr * Δ`` (McMahan et al. 2017 with lr = 1).
- ``fedavgm``: ``m = momentum * m + Δ``; ``w += lr * m``, or with Nesterov's look ahead ``w += lr * (Δ + momentum * m)``
  (Hsu et al. 2019). DiLoCo's outer optimiser (Douillard et al. 2023) is ``nesterov`` with momentum 0.9 and lr 0.7.
- ``fedadagrad``, ``fedadam``, ``fedyogi``: Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 2:
  ``m = beta1 * m + (1 - beta1) * Δ``, ``v`` by the rule of each, ``w += lr * m / (sqrt(v) + tau)``. ``v`` starts at
  ``tau**2``, ``m`` at 0, and there is no bias correction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from atoll.server.aggregation import _loops
from atoll.server.aggregation._jit import array_type, compiled, tuple_type
from atoll.server.aggregation.errors import AggregationError

Float64s = npt.NDArray[np.float64]
State = Mapping[str, npt.NDArray[np.float32]]
"""Named state tensors of one block, each float32 of the block's shape (n,)."""

_MOMENTUM = "momentum"
_SECOND_MOMENT = "second_moment"


@dataclass(frozen=True, slots=True)
class Applied:
    """New weights (float64, shape (n,)) and new state of a block."""

    weights: Float64s
    state: State


class ServerOptimiser(Protocol):
    """The interface of optimisers for ``next_model``."""

    name: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]]

    def init(self, size: int) -> State:
        """The state of ``size`` elements before the first round."""
        ...

    def apply(self, state: State, weights: Float64s, mean_update: Float64s, out: Applied | None = None) -> Applied:
        """Apply one round to a block of shape (n,); only ``out`` is written to, and returned, if it is given."""
        ...


@dataclass(frozen=True, slots=True)
class FedAvg:
    """Adds the mean update, times the server's learning rate."""

    name: ClassVar[str] = "fedavg"
    state_names: ClassVar[tuple[str, ...]] = ()

    lr: float = 1.0

    def __post_init__(self) -> None:
        _check_lr(self.lr)

    def init(self, size: int) -> State:
        """No state."""
        return _filled(size)

    def apply(self, state: State, weights: Float64s, mean_update: Float64s, out: Applied | None = None) -> Applied:
        """One step ``w += lr * Δ``."""
        new = out or _like(weights, state)
        np.multiply(mean_update, self.lr, out=new.weights)
        np.add(new.weights, weights, out=new.weights)
        return new


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
        _check_decays(momentum=self.momentum)

    def init(self, size: int) -> State:
        """State ``m = 0``."""
        return _filled(size, momentum=0.0)

    def apply(self, state: State, weights: Float64s, mean_update: Float64s, out: Applied | None = None) -> Applied:
        """One step ``m = momentum * m + Δ``; ``w += lr * m``, with ``nesterov`` ``w += lr * (Δ + momentum * m)``."""
        new = out or _like(weights, state)
        step = new.weights  # holds m, then the step, then the weights, so no further block is needed
        np.multiply(state[_MOMENTUM], self.momentum, out=step, dtype=np.float64)
        np.add(step, mean_update, out=step)
        np.copyto(new.state[_MOMENTUM], step, casting="same_kind")
        if self.nesterov:
            np.multiply(step, self.momentum, out=step)
            np.add(step, mean_update, out=step)
        np.multiply(step, self.lr, out=step)
        np.add(step, weights, out=step)
        return new


@dataclass(frozen=True, slots=True)
class FedAdagrad:
    """Second moment ``v = v + Δ**2``, which only grows; ``beta1 = 0`` gives the paper's experiments."""

    name: ClassVar[str] = "fedadagrad"
    state_names: ClassVar[tuple[str, ...]] = (_MOMENTUM, _SECOND_MOMENT)

    lr: float = 0.01
    beta1: float = 0.9
    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check_adaptive(self.lr, self.tau, beta1=self.beta1)

    def init(self, size: int) -> State:
        """State ``m = 0``, ``v = tau**2``."""
        return _filled(size, momentum=0.0, second_moment=self.tau**2)

    def apply(self, state: State, weights: Float64s, mean_update: Float64s, out: Applied | None = None) -> Applied:
        """One step of Algorithm 2 with the second moment of this class."""
        settings = (self.lr, self.beta1, 0.0, self.tau)
        return _adaptive(_loops.adagrad, settings, state, weights, mean_update, out)


@dataclass(frozen=True, slots=True)
class _WithBeta2:
    """An adaptive optimiser whose second moment decays by ``beta2``."""

    state_names: ClassVar[tuple[str, ...]] = (_MOMENTUM, _SECOND_MOMENT)
    loop: ClassVar[_loops.SecondMoment]

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check_adaptive(self.lr, self.tau, beta1=self.beta1, beta2=self.beta2)

    def init(self, size: int) -> State:
        """State ``m = 0``, ``v = tau**2``."""
        return _filled(size, momentum=0.0, second_moment=self.tau**2)

    def apply(self, state: State, weights: Float64s, mean_update: Float64s, out: Applied | None = None) -> Applied:
        """One step of Algorithm 2 with the second moment of this class."""
        settings = (self.lr, self.beta1, self.beta2, self.tau)
        return _adaptive(type(self).loop, settings, state, weights, mean_update, out)


@dataclass(frozen=True, slots=True)
class FedAdam(_WithBeta2):
    """Second moment ``v = beta2 * v + (1 - beta2) * Δ**2``."""

    name: ClassVar[str] = "fedadam"
    loop: ClassVar[_loops.SecondMoment] = _loops.adam


@dataclass(frozen=True, slots=True)
class FedYogi(_WithBeta2):
    """Second moment ``v = v - (1 - beta2) * Δ**2 * sign(v - Δ**2)``, a bounded move to ``Δ**2``."""

    name: ClassVar[str] = "fedyogi"
    loop: ClassVar[_loops.SecondMoment] = _loops.yogi


_OPTIMISERS = {cls.name: cls for cls in (FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi)}
OPTIMISER_NAMES: tuple[str, ...] = tuple(_OPTIMISERS)


def optimiser_named(name: str, settings: Mapping[str, float] | None = None) -> ServerOptimiser:
    """The optimiser of this name; settings that are left out keep their defaults.

    Raises:
        AggregationError: for an unknown name or setting, or a value out of range.
    """
    if name not in _OPTIMISERS:
        raise AggregationError(f"unknown server optimiser {name!r}", f"allowed are {', '.join(OPTIMISER_NAMES)}")
    cls = _OPTIMISERS[name]
    allowed = [field.name for field in fields(cls)]
    if unknown := sorted(set(settings or {}) - set(allowed)):
        raise AggregationError(f"{name} has no setting {unknown[0]!r}", f"allowed are {', '.join(allowed)}")
    return cls(**dict[str, Any](settings or {}))


def _adaptive(
    rule: _loops.SecondMoment,
    settings: _loops.Settings,
    state: State,
    weights: Float64s,
    mean_update: Float64s,
    out: Applied | None,
) -> Applied:
    new = out or _like(weights, state)
    moments = (state[_MOMENTUM], state[_SECOND_MOMENT])
    new_moments = (new.state[_MOMENTUM], new.state[_SECOND_MOMENT])
    _adaptive_loop(rule)(weights, mean_update, *moments, settings, new.weights, *new_moments)
    return new


@cache
def _adaptive_loop(rule: _loops.SecondMoment) -> _loops.Adaptive:
    float64s, float32s = array_type(np.float64), array_type(np.float32)
    new_float64s, new_float32s = array_type(np.float64, writable=True), array_type(np.float32, writable=True)
    old = (float64s, float64s, float32s, float32s)
    new = (new_float64s, new_float32s, new_float32s)
    return compiled(_loops.adaptive_with(rule), (*old, tuple_type(np.float64, 4), *new))


def _filled(size: int, **values: float) -> State:
    return {name: np.full(size, value, np.float32) for name, value in values.items()}


def _like(weights: Float64s, state: State) -> Applied:
    return Applied(np.empty_like(weights), {name: np.empty_like(value) for name, value in state.items()})


def _check_adaptive(lr: float, tau: float, **decays: float) -> None:
    _check_lr(lr)
    if not (np.isfinite(tau) and tau > 0):
        raise AggregationError(f"tau {tau} is out of range", "allowed are finite values above 0, for example 1e-3")
    _check_decays(**decays)


def _check_lr(lr: float) -> None:
    if not (np.isfinite(lr) and lr > 0):
        raise AggregationError(f"server lr {lr} is out of range", "allowed are finite values above 0, for example 1.0")


def _check_decays(**decays: float) -> None:
    for name, value in decays.items():
        if not 0 <= value < 1:
            raise AggregationError(f"{name} {value} is out of range", "allowed are values from 0 to below 1")
