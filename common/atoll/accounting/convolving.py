"""Epsilon of many releases from the sum of their privacy losses: one convolution, by the Fourier transform.

The distribution of the sum is computed under a tilt: masses are multiplied by exp(t loss), which moves the sum's mean
close to epsilon, and afterwards the tilt is undone (Esscher's transform; Koskela et al. 2021 and Gopi et al. 2021
convolve without it). So float64's rounding is small relative to the probabilities that matter, however small delta is.
Mass that is truncated, rounded, or wrapped around by the transform's period is bounded and counted against delta. The
result is therefore an upper bound for any tilt, step and length; these only decide how tight it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from atoll.accounting.losses import Atoms, Doubles, atoms, highest_loss, mean_and_variance
from atoll.accounting.steps import Steps

Complexes = npt.NDArray[np.complex128]

MAX_POINTS = 1 << 20
"""Maximum number of points of a transform, which then takes about a tenth of a second."""
MAX_LOSS = 600.0
"""Exponentials of privacy losses above this overflow."""
_STEP = 0.05
"""Step of the grid, in standard deviations of the loss of an average release."""
_COARSER = (1, 3, 9, 27)
_LEFT_OUT = 1e-4
"""Share of delta for losses treated as infinite, and again for sums above the examined range."""
_ASTRAY = 1e-13
"""Tilted mass beyond either end of the examined range; the transform's period wraps it around."""
_UNIT = 2.0**-53
_TRANSFORM_ERROR = 8 * _UNIT
"""Relative L2 error of a transform and its inverse, for each release and doubling of the length."""
_LOGARITHM_DOUBLINGS = 4
"""Rounding error of a power computed as exp(n log x), in units of the transform's error for one doubling."""
_SLACK = 0.01
"""Allowance for the logarithms in Chernoff's bounds, which rounding moves by far less."""
_SMALL = -30.0
_ABOVE = (1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0, 5.0, 20.0)
_BELOW = (0.98, 0.95, 0.9, 0.8, 0.65, 0.5, 0.3, 0.0, -0.5, -1.0, -2.0, -5.0)
_TURNS = 24
_TILT_STEP = 1.6
_NEXT_TILT = 0.7
_MIN_TILT = 1e-3
_BETTER = 1 - 1e-3


def epsilon_by_convolution(paid: Sequence[Steps], delta: float) -> float:
    """Upper bound on epsilon at ``delta``, of all releases together; infinite if it cannot be computed.

    Neighbours add or remove a sample; both directions are composed, and the larger epsilon is taken.
    """
    apart = sum(one.count * one.sample_rate * math.erf(math.sqrt(0.125) / one.noise_multiplier) for one in paid)
    if apart <= delta:  # total variation adds up
        return 0.0
    outside = _LEFT_OUT * delta / sum(one.count for one in paid)
    reach = max(highest_loss(one.noise_multiplier, one.sample_rate, outside) for one in paid)
    if reach > MAX_LOSS or sum(one.count * _moments(one)[0] for one in paid) > MAX_LOSS:
        return math.inf
    finest = _STEP * math.sqrt(sum(one.count * _moments(one)[1] for one in paid) / sum(one.count for one in paid))
    steps = [max(finest * factor, reach / (MAX_POINTS / 4)) for factor in _COARSER]
    return max(_one_way(paid, delta, outside, steps, present=present) for present in (True, False))


def _moments(one: Steps) -> tuple[float, float]:
    return mean_and_variance(one.noise_multiplier, one.sample_rate)


def _one_way(paid: Sequence[Steps], delta: float, outside: float, steps: Sequence[float], *, present: bool) -> float:
    """The least epsilon over successively coarser grids, which allow larger tilts."""
    best = math.inf
    for step in steps:
        total = _Sum([(_atoms(one, step, outside, present=present), one.count) for one in paid])
        found = _by_best_tilt(total, delta)
        if math.isfinite(best) and found > best * _BETTER:
            break
        best = min(best, found)
    return best


def _atoms(one: Steps, step: float, outside: float, *, present: bool) -> Atoms:
    return atoms(one.noise_multiplier, one.sample_rate, step, outside, present=present)


def _by_best_tilt(total: _Sum, delta: float) -> float:
    """The least epsilon over several tilts, from Chernoff's, which is best for many releases, downwards."""
    best, tilt = total.highest, total.chernoff_tilt(delta)
    for _ in range(_TURNS):
        found = total.epsilon(tilt, delta)
        if best < total.highest and found > best * _BETTER:
            break
        best, tilt = min(best, found), tilt * _NEXT_TILT
    return best


@dataclass(frozen=True)
class _Sum:
    """A sum of independent losses: ``parts`` are pairs of a distribution and its count."""

    parts: Sequence[tuple[Atoms, int]]

    @cached_property
    def _logs(self) -> list[tuple[Doubles, Doubles, int]]:
        found = []
        for part, count in self.parts:
            there = part.masses > 0
            found.append((part.losses[there], np.log(part.masses[there]), count))
        return found

    @cached_property
    def _releases(self) -> int:
        return sum(count for _, count in self.parts)

    @property
    def highest(self) -> float:
        """The largest finite loss; infinite if it is too large to compute."""
        found = sum(count * float(losses[-1]) for losses, _, count in self._logs)
        return found if found <= MAX_LOSS else math.inf

    def cumulant(self, tilt: float) -> float:
        """Logarithm of E[exp(tilt loss)], over finite losses."""
        total = 0.0
        for losses, logs, count in self._logs:
            total += count * self._log_sum(logs + tilt * losses)
        return total

    def chernoff_tilt(self, delta: float) -> float:
        """The tilt that gives the least epsilon by Chernoff's bound alone."""

        def bound(tilt: float) -> float:
            return (self.cumulant(tilt) - math.log(delta)) / tilt

        tilt, least = 1.0, bound(1.0)
        for factor in (_TILT_STEP, 1 / _TILT_STEP):  # the bound falls, then rises
            while _MIN_TILT < tilt < 1 / self.parts[0][0].step and (found := bound(tilt * factor)) < least:
                tilt, least = tilt * factor, found
        return tilt

    def epsilon(self, tilt: float, delta: float) -> float:
        """Upper bound at one tilt; infinite if it needs too many points, or if no sum in range satisfies delta."""
        log_scale = self.cumulant(tilt)
        step = self.parts[0][0].step
        first, points = self._window(tilt, log_scale, step, _LEFT_OUT * delta)
        length = 1 << max(1, points - 1).bit_length()
        if length > MAX_POINTS:
            return math.inf
        index = np.arange(first, first + points)
        tilted, error = self._tilted(tilt, length)
        error = 2 * _ASTRAY + error * math.sqrt(min(length, 1 / -math.expm1(-2 * tilt * step)))
        log_scale += self._weights_error(tilt) + points * _UNIT
        room = delta * (1 - 2 * _LEFT_OUT) - sum(count * part.infinite for part, count in self.parts)
        losses: Doubles = index * np.float64(step)
        return _least_epsilon(losses, tilted[index % length], error, room, log_scale, tilt)

    def _weights_error(self, tilt: float) -> float:
        """Bound on the effect of rounding on the tilted sum, as the logarithm of a factor.

        The weight of each atom is off by at most a few units times its exponents. The weight of the most common loss is
        1 minus all others; its relative error is a few units for each doubling of their number. All weights are above
        0, so a convolution of n factors is off by at most the n-th power of that factor.
        """
        total = 0.0
        for losses, logs, count in self._logs:
            exponents = logs + tilt * losses
            sizes = float(np.max(np.abs(logs) + 2 * np.abs(tilt * losses))) + abs(float(exponents.max()))
            usual = math.exp(float(exponents.max()) - self._log_sum(exponents))
            total += count * _UNIT * (4 * sizes + 8 + 2 * (math.log2(losses.size) + 2) / usual)
        return total

    @staticmethod
    def _log_sum(exponents: Doubles) -> float:
        largest = float(exponents.max())
        return largest + math.log(float(np.exp(exponents - largest).sum()))

    def _window(self, tilt: float, log_scale: float, step: float, beyond: float) -> tuple[int, int]:
        """First loss to examine, in steps, and the number of losses; from Chernoff's bounds, which hold at any tilt."""
        higher = [(tilt * factor, self.cumulant(tilt * factor)) for factor in _ABOVE]
        lower = [(tilt * factor, self.cumulant(tilt * factor)) for factor in _BELOW]
        rare, beyond = math.log(_ASTRAY) - _SLACK, beyond * math.exp(-_SLACK)
        top = max(
            min((cumulant - math.log(beyond)) / other for other, cumulant in higher),
            min((cumulant - log_scale - rare) / (other - tilt) for other, cumulant in higher),
        )
        bottom = max((log_scale - cumulant + rare) / (tilt - other) for other, cumulant in lower)
        first = math.floor(bottom / step) - 1
        return first, math.ceil(top / step) + 2 - first

    def _tilted(self, tilt: float, length: int) -> tuple[Doubles, float]:
        """The tilted sum's masses at losses of 0, 1, ... steps modulo ``length``, and the L2 norm of their error.

        If one loss has nearly all the mass, its transform has a modulus close to 1 everywhere. So only the difference
        from that is transformed, and errors are proportional to the difference.
        """
        parts, shift = [], 0
        for (losses, logs, count), (part, _) in zip(self._logs, self.parts, strict=True):
            weights = np.exp(logs + tilt * losses - np.max(logs + tilt * losses))
            weights /= weights.sum()
            steps = np.rint(losses / part.step).astype(np.int64)
            usual = int(np.argmax(weights))
            weights[usual] = 0.0
            weights[usual] = -weights.sum()
            apart = np.fft.rfft(np.bincount((steps - steps[usual]) % length, weights, length))
            parts.append((_log1p(apart), count, -2 * float(weights[usual])))
            shift += count * int(steps[usual])
        logarithm: Complexes = np.zeros(length // 2 + 1, np.complex128)
        for log, count, _ in parts:
            logarithm += count * log
        masses = np.maximum(np.fft.irfft(np.exp(logarithm), length), 0.0)
        return np.roll(masses, shift % length), _rounding(parts, np.real(logarithm), length)


def _rounding(parts: Sequence[tuple[Complexes, int, float]], log_modulus: Doubles, length: int) -> float:
    """L2 norm of the masses' rounding error, from (transform's logarithm, count, L1 norm of its input).

    Each value of a transform is off by at most the L1 norm times ``_TRANSFORM_ERROR`` for each doubling; its power, and
    the product, by that times the derivative.
    """
    each = np.zeros(log_modulus.size)
    for log, count, size in parts:
        others = np.minimum(0.0, log_modulus - np.maximum(log.real, _SMALL))
        each += count * size * np.exp(np.where(log.real > _SMALL, others, 0.0 if count == 1 else _SMALL))
    forth = math.sqrt(2 * float(np.sum(each**2)) / length)
    return (forth + 1.0) * _TRANSFORM_ERROR * (math.log2(length) + _LOGARITHM_DOUBLINGS)


def _log1p(z: Complexes) -> Complexes:
    """The logarithm of 1 + z, with float64's relative precision for small z (numpy's precision is absolute)."""
    near = 0.5 * np.log1p(np.maximum(2 * z.real + z.real**2 + z.imag**2, -0.9))
    far = np.log(np.maximum(np.abs(1 + z), 1e-300))
    return np.where(np.abs(z) < 0.5, near, far) + 1j * np.arctan2(z.imag, 1 + z.real)


def _least_epsilon(losses: Doubles, tilted: Doubles, error: float, room: float, log_scale: float, tilt: float) -> float:
    """The least epsilon with sum over losses above it of mass (1 - exp(epsilon - loss)) at most ``room``.

    ``error`` bounds the error of the tilted masses in any such sum.
    """
    exponents = log_scale - tilt * losses
    known = exponents < MAX_LOSS  # lower sums are blurred by rounding
    losses, exponents, tilted = losses[known], exponents[known], tilted[known]
    if losses.size < 2 or losses[-1] > MAX_LOSS:
        return math.inf
    untilt = np.exp(exponents)
    masses = untilt * tilted
    with_it = np.append(np.cumsum(masses[::-1])[::-1][1:], 0.0)
    without = np.append(np.cumsum((masses * np.exp(-losses))[::-1])[::-1][1:], 0.0)
    lost = 2 * losses.size * _UNIT  # by adding them up one after another, of each sum
    above = with_it - np.exp(losses) * without + untilt * error + lost * (with_it + np.exp(losses) * without) > room
    if not above.any():
        return 0.0 if losses[0] <= 0 else math.inf
    last = int(np.flatnonzero(above)[-1])
    if last + 1 == losses.size:
        return math.inf
    left = room - untilt[last] * error - 2 * lost * with_it[last]
    if with_it[last] <= left:
        found = float(losses[last])
    else:  # ``without`` is 0 where its masses are below the smallest float
        found = math.log((with_it[last] - left) / without[last]) if without[last] > 0 else math.inf
    return max(0.0, float(min(max(found, losses[last]), losses[last + 1])))
