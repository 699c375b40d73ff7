"""Finds the BLT with the least noise for a run's number of rounds and its bounds on one participant's rounds.

L-BFGS-B minimises the error of ``prefix_error`` over logarithms of ``1 - decay`` and ``scale`` (McMahan, Xu, Zhang
2024, arXiv:2408.08868, Section 4). The result is stored with the run: on another machine its last digits may differ,
but only the stored one is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from atoll.server.errors import InvalidRequestError
from atoll.server.privacy.mechanisms.prefix_error import QuickError
from atoll.server.privacy.mechanisms.strategy import (
    MAX_FRACTION_BITS,
    Doubles,
    Strategy,
    buffer_growth,
    rounded,
)

ENOUGH = 1.005
"""If the number of buffers is not given, the fewest are chosen whose noise is at most this multiple of the minimum."""
MOST_TRIED = 4
_MOST_STEPS = 400
_STEP = 1e-7
"""Step of the finite differences that approximate derivatives."""
_SPARE = 1 + 2.0**-10
"""Margin for the amount that rounding adds to buffers."""
_SUM_PENALTY = 10.0


@lru_cache(maxsize=64)
def best_strategy(rounds: int, min_separation: int, max_participations: int, buffers: int | None = None) -> Strategy:
    """The BLT with the least noise; takes a tenth of a second, some seconds for very many rounds of one separation.

    Args:
        rounds: the run's train rounds.
        min_separation: minimum number of rounds from one participation of a participant to the next.
        max_participations: maximum number of rounds that a participant is in.
        buffers: 1 to 5; None for the fewest with hardly more noise than the minimum.

    Raises:
        InvalidRequestError: if the run has more rounds than int64 buffers can hold.
    """
    error = QuickError(rounds, min_separation, max_participations)
    if buffers is not None:
        return _strategy(_minimised(error, rounds, buffers), rounds)
    found = [_minimised(error, rounds, count) for count in range(1, MOST_TRIED + 1)]
    least = min(one.error for one in found)
    return _strategy(next(one for one in found if one.error <= least * ENOUGH), rounds)


@dataclass(frozen=True, slots=True)
class _Found:
    """The error of a matrix, and its parameters."""

    error: float
    decays: tuple[float, ...]
    scales: tuple[float, ...]


def _minimised(error: QuickError, rounds: int, count: int) -> _Found:
    """The best matrix with the given number of buffers."""
    from scipy.optimize import minimize  # noqa: PLC0415  # half a second that other jobs save

    def logarithm(point: Doubles) -> float:
        slowness, scales, beyond = _parameters(point)
        return math.log(error.of(slowness, scales)) + _SUM_PENALTY * beyond

    spread = np.linspace(0.7, math.log(rounds + 1) + 0.5, count) if count > 1 else np.array([math.log(rounds + 1) / 2])
    start = np.concatenate([spread, -spread / 2 - 1.2])
    bounds = [(1e-3, 16.0)] * count + [(-16.0, 0.0)] * count
    options = {"maxiter": _MOST_STEPS, "eps": _STEP}
    found: Any = minimize(logarithm, start, method="L-BFGS-B", bounds=bounds, options=options)
    slowness, scales, _ = _parameters(np.asarray(found.x))
    decays = 1 - np.exp(-slowness)
    return _Found(math.exp(found.fun), rounded(decays.tolist()), rounded(scales.tolist()))


def _parameters(point: Doubles) -> tuple[Doubles, Doubles, float]:
    """Slowness and scales, with scales reduced if their sum exceeds 1, and the excess of that sum.

    With a larger sum, C would not decrease from the diagonal downwards, and ``C**-1`` could grow without bound.
    """
    count = point.size // 2
    scales = np.exp(point[count:])
    total = float(scales.sum())
    return point[:count], scales / max(1.0, total), max(0.0, total - 1.0)


def _strategy(found: _Found, rounds: int) -> Strategy:
    growth = buffer_growth(np.array(found.decays), np.array(found.scales), rounds)
    bits = MAX_FRACTION_BITS - max(0, math.ceil(math.log2(growth * _SPARE)))
    if bits < 1:
        raise InvalidRequestError(
            "privacy.mechanism",
            f'mechanism "blt" over {rounds} rounds: its buffers grow to {growth:.3g} times the noise of one round, and '
            f"have room for {2 ** (MAX_FRACTION_BITS - 1)} times",
            "plan fewer rounds, or choose another mechanism",
        )
    return Strategy(found.decays, found.scales, bits)
