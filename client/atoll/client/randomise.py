"""Local randomisers: the update is noised here, so that its privacy needs no trust in the server.

::

    from atoll.client import Policy, run
    from atoll.client.randomise import Gaussian, Limit, LocalPrivacy

    local = LocalPrivacy(Gaussian(epsilon=1.0, delta=1e-7, clip_norm=1.0), limit=Limit(epsilon=8.0, delta=1e-5))
    run(participant, join_token, policy=Policy(local_privacy=local))

The unit is the participant: whatever its data, any two updates that it might send are told apart no better than
epsilon and delta allow. What it spends over all rounds and runs stands in a ledger of its own; a round beyond the limit
is declined before training. Metrics are not sent, the weight is the declared one, and an update that is not finite
is sent as if it were zero: a failure tells something, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from atoll.accounting.gaussian import epsilon_of, noise_multiplier_of
from atoll.client.errors import UsageError
from atoll.client.privacy.clipping import BLOCK, product_of, write_checked
from atoll.client.privacy.keystream import LARGEST_NORMAL, Keystream
from atoll.client.privacy.ledger import Limit, Release
from atoll.client.transfer.cut import cut_ranges
from atoll.client.transfer.source import ElementSource, runs_of
from atoll.wire.encoding import Encoding
from atoll.wire.figures import bound

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.wire.chunks import ElementRange

__all__ = ["Gaussian", "Limit", "LocalPrivacy", "Mechanism", "Sphere"]

_GRID_BITS = 20
_LARGEST_EPSILON = 30.0
_COIN_BITS = 64


@dataclass(frozen=True)
class Noise:
    """What noise goes by.

    Attributes:
        ranges: all elements that are sent.
        stream: for noise; new for each update.
        coins: likewise, with another key.
        max_abs: the largest magnitude that the server takes.
    """

    ranges: Sequence[ElementRange]
    stream: Keystream
    coins: Keystream
    max_abs: float


class Mechanism(Protocol):
    """A randomiser of whole updates."""

    @property
    def release(self) -> Release:
        """What one update costs."""
        ...

    @property
    def reach(self) -> float:
        """A magnitude that no element of a noised update is beyond, but for a chance below 2^-60 an element."""
        ...

    def noised(self, source: ElementSource, norm: float, noise: Noise) -> ElementSource:
        """The noised elements of a finite update with this norm, the same however often they are read."""
        ...


@dataclass(frozen=True)
class Gaussian:
    """The update, clipped to ``clip_norm``, plus Gaussian noise; (epsilon, delta)-private.

    Any two updates are at most 2 * ``clip_norm`` apart. Noise is calibrated exactly (Balle & Wang 2018, algorithm 1).
    Each element's variance is (2 * clip_norm * noise_multiplier)^2.

    Raises:
        UsageError: for parameters that cannot be.
    """

    epsilon: float
    delta: float
    clip_norm: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf or not 0 < self.delta < 1:
            given = f"epsilon = {self.epsilon}, delta = {self.delta}"
            raise UsageError(f"{given}; allowed is a finite epsilon above 0, and a delta above 0 and below 1")
        _check_clip(self.clip_norm)

    @cached_property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over the sensitivity 2 * clip_norm."""
        return noise_multiplier_of(self.epsilon, self.delta)

    @property
    def std(self) -> float:
        """Standard deviation of the noise on each element."""
        return 2 * self.clip_norm * self.noise_multiplier

    @property
    def release(self) -> Release:
        """See ``Mechanism``."""
        return Release("gaussian", noise_multiplier=self.noise_multiplier)

    @property
    def reach(self) -> float:
        """See ``Mechanism``; the generator's tail ends there."""
        return self.clip_norm + LARGEST_NORMAL * self.std

    def noised(self, source: ElementSource, norm: float, noise: Noise) -> ElementSource:
        """See ``Mechanism``."""
        factor = self.clip_norm / norm if norm > self.clip_norm else 1.0
        return _Added(source, factor, self.std, noise)


@dataclass(frozen=True)
class Sphere:
    """A direction in place of the update: one of the half of all directions that are nearer to it than to its opposite.

    Duchi, Jordan & Wainwright 2018, section 4.2.3: epsilon alone, no delta. With r = ``clip_norm`` and d elements the
    update is rounded at random to +-r times its direction; a direction is drawn from its half of the sphere with chance
    e^epsilon / (1 + e^epsilon), else from the other. What is sent always has the norm ``radius(d)`` and the clipped
    update as its mean, so its squared error is radius(d)^2 less the clipped update's squared norm: about
    (pi / 2) r^2 d / tanh(epsilon / 2)^2.

    Which updates can be sent does not depend on the data, so rounding in floating point reveals nothing.

    Raises:
        UsageError: for parameters that cannot be.
    """

    epsilon: float
    clip_norm: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= _LARGEST_EPSILON:
            raise UsageError(f"epsilon = {self.epsilon}; allowed is above 0, at most {_LARGEST_EPSILON:g}")
        _check_clip(self.clip_norm)

    def radius(self, elements: int) -> float:
        """The norm of what is sent in place of so many elements."""
        return self.clip_norm / math.tanh(self.epsilon / 2) * math.sqrt(math.pi) * _gamma_ratio(elements / 2)

    @property
    def release(self) -> Release:
        """See ``Mechanism``."""
        return Release("sphere", epsilon=self.epsilon)

    @property
    def reach(self) -> float:
        """See ``Mechanism``.

        An element is radius * g_i / |g| for normal g, and the radius at most sqrt(pi d / 2) clip_norm / tanh: within
        reach up to 360 elements. Of more, |g_i| is within ``LARGEST_NORMAL``, and |g| below half of sqrt(d) with a
        chance below e^-(9 d / 64) (Laurent & Massart 2000, lemma 1).
        """
        return 2 * LARGEST_NORMAL * math.sqrt(math.pi / 2) * self.clip_norm / math.tanh(self.epsilon / 2)

    def noised(self, source: ElementSource, norm: float, noise: Noise) -> ElementSource:
        """See ``Mechanism``; one pass, to find on which side of the update the drawn direction is."""
        squared, along = _direction(source, noise)
        up, near = noise.coins.words(0, 2).tolist()
        positive = up < _threshold((1 + min(1.0, norm / self.clip_norm)) / 2)
        # Rounded down: the larger chance over the smaller is then at most e^epsilon.
        within = near < _threshold(1 / (1 + math.exp(-self.epsilon))) - (1 << 12)
        sign = 1.0 if (positive == within) == (along >= 0.0) else -1.0
        size = sum(span.size for span in noise.ranges)
        return _Direction(sign * self.radius(size) / math.sqrt(squared), noise)


@dataclass(frozen=True)
class LocalPrivacy:
    """A randomiser, and what may be spent with it in all rounds and runs together.

    Attributes:
        mechanism: what noises each update.
        limit: of all updates together.
        ledger: its file; None: ``privacy/updates.json`` in the participant's state directory.

    Raises:
        UsageError: for a limit that allows no round.
    """

    mechanism: Mechanism
    limit: Limit
    ledger: Path | None = None

    def __post_init__(self) -> None:
        first = cost([self.mechanism.release], self.limit.delta)
        if first > self.limit.epsilon:
            raise UsageError(
                f"one update costs epsilon {bound(first)} at delta {self.limit.delta:g}, above the limit "
                f"{self.limit.epsilon:g}: no round could be taken part in"
            )


def cost(releases: Iterable[Release], delta: float) -> float:
    """The epsilon that noised updates come to: the best of two sums.

    Epsilons added to what the Gaussians come to exactly; or everything as zero-concentrated privacy (Bun & Steinke
    2016: propositions 1.3, 1.4 and 1.6), better for many small epsilons. Both hold for any number of releases that
    somebody else decides on the way.
    """
    mu = pure = rho = 0.0
    for release in releases:
        if release.noise_multiplier:
            mu = math.hypot(mu, math.sqrt(release.count) / release.noise_multiplier)
        pure += release.count * release.epsilon
        rho += release.count * release.epsilon * release.epsilon / 2
    added = pure + epsilon_of(delta, mu)
    if delta == 0.0 or not pure:
        return added
    rho += mu * mu / 2
    return min(added, rho + 2 * math.sqrt(rho * -math.log(delta)))


class _Added:
    """A scaled update plus noise, on a grid of 2^-20 of the noise, so that the low bits of sums do not travel."""

    def __init__(self, source: ElementSource, factor: float, std: float, noise: Noise) -> None:
        self._source, self._factor, self._std, self._noise = source, factor, std, noise
        self._grid = 2.0 ** (math.floor(math.log2(std)) - _GRID_BITS)

    def read(self, elements: ElementRange, encoding: Encoding, out: npt.NDArray[np.generic]) -> None:
        values = np.empty(elements.size)
        self._source.read(elements, Encoding.FLOAT64, values)
        values *= self._factor
        values += self._std * _normals(self._noise, elements)
        values = np.rint(values / self._grid) * self._grid
        write_checked(values, encoding, out, self._noise.max_abs)


class _Direction:
    """A drawn direction at a length; knows nothing of the update but on which side it is."""

    def __init__(self, scale: float, noise: Noise) -> None:
        self._scale, self._noise = scale, noise

    def read(self, elements: ElementRange, encoding: Encoding, out: npt.NDArray[np.generic]) -> None:
        write_checked(self._scale * _normals(self._noise, elements), encoding, out, self._noise.max_abs)


def _direction(source: ElementSource, noise: Noise) -> tuple[float, float]:
    """The squared norm of the drawn normals, and their product with the update."""
    squares, products = [], []
    for chunk in cut_ranges(noise.ranges, BLOCK):
        values, drawn = np.empty(chunk.size), _normals(noise, chunk)
        source.read(chunk, Encoding.FLOAT64, values)
        squares.append(product_of(drawn, drawn))
        products.append(product_of(drawn, values))
    return math.fsum(squares), math.fsum(products)


def _normals(noise: Noise, elements: ElementRange) -> npt.NDArray[np.float64]:
    """Those that belong to the elements by their place in the model, however it is cut."""
    return np.concatenate([noise.stream.normals(start, stop - start) for start, stop in runs_of(elements)])


def _threshold(chance: float) -> int:
    """What 64 random bits are below with this chance."""
    return int(chance * 2**_COIN_BITS)


def _gamma_ratio(x: float) -> float:
    """Gamma(x + 1/2) / Gamma(x); by its series where logarithms would cancel."""
    if x < 1000:
        return math.exp(math.lgamma(x + 0.5) - math.lgamma(x))
    return math.sqrt(x) * (1 - 1 / (8 * x) + 1 / (128 * x * x))


def _check_clip(clip_norm: float) -> None:
    if not 0 < clip_norm < math.inf:
        raise UsageError(f"clip_norm = {clip_norm}; allowed is anything finite above 0")
