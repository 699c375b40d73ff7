"""Local randomisers, which add noise to updates before they are sent; see ``atoll.client.local_privacy``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from atoll.accounting.gaussian import epsilon_of, noise_multiplier_of
from atoll.client._privacy.clipping import BLOCK_ELEMENTS, inner_product, write_checked
from atoll.client._privacy.keystream import LARGEST_NORMAL, Keystream
from atoll.client._privacy.ledger import Limit, Release
from atoll.client._transfer.elements import ElementSource, cut_ranges, runs_of
from atoll.client.errors import UsageError
from atoll.text.figures import bound
from atoll.wire.encoding import Encoding

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.wire.chunks import ElementRange

_GRID_BITS = 20
_LARGEST_EPSILON = 30.0
_COIN_BITS = 64


@dataclass(frozen=True)
class Noise:
    """The randomness for one update, and the elements that it covers.

    Attributes:
        ranges: all elements that are sent.
        stream: source of the noise; new for each update.
        coins: source of random decisions; new for each update, with another key.
        max_abs: the largest magnitude that the server accepts.
    """

    ranges: Sequence[ElementRange]
    stream: Keystream
    coins: Keystream
    max_abs: float


class Mechanism(Protocol):
    """A randomiser of whole updates."""

    @property
    def release(self) -> Release:
        """The release of one update, for the ledger."""
        ...

    @property
    def reach(self) -> float:
        """A bound on the elements of a noised update; each exceeds it with a probability below 2^-60."""
        ...

    def noised(self, source: ElementSource, norm: float, noise: Noise) -> ElementSource:
        """The noised elements of a finite update with this norm; reading them again gives the same values."""
        ...


@dataclass(frozen=True)
class Gaussian:
    """The update, clipped to ``clip_norm``, plus Gaussian noise; (epsilon, delta)-private.

    Any two updates are at most 2 * ``clip_norm`` apart. Noise is calibrated exactly (Balle & Wang 2018, algorithm 1).
    Each element's variance is (2 * clip_norm * noise_multiplier)^2.

    Raises:
        UsageError: for parameters out of range.
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
        """See ``Mechanism``; the generator never draws a larger normal."""
        return self.clip_norm + LARGEST_NORMAL * self.std

    def noised(self, source: ElementSource, norm: float, noise: Noise) -> ElementSource:
        """See ``Mechanism``."""
        factor = self.clip_norm / norm if norm > self.clip_norm else 1.0
        return _Added(source, factor, self.std, noise)


@dataclass(frozen=True)
class Sphere:
    """A random direction instead of the update, most likely from the half of the sphere around the update's direction.

    Duchi, Jordan & Wainwright 2018, section 4.2.3: pure epsilon, no delta. With r = ``clip_norm`` and d elements, the
    update is rounded at random to +-r times its direction. A direction is then drawn from that half of the sphere with
    probability e^epsilon / (1 + e^epsilon), otherwise from the other half. The result always has the norm
    ``radius(d)``, and its mean is the clipped update, so its squared error is radius(d)^2 minus the clipped update's
    squared norm: about (pi / 2) r^2 d / tanh(epsilon / 2)^2.

    The set of possible results does not depend on the data, so floating-point rounding reveals nothing.

    Raises:
        UsageError: for parameters out of range.
    """

    epsilon: float
    clip_norm: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= _LARGEST_EPSILON:
            raise UsageError(f"epsilon = {self.epsilon}; allowed is above 0, at most {_LARGEST_EPSILON:g}")
        _check_clip(self.clip_norm)

    def radius(self, elements: int) -> float:
        """The norm of the result for an update of ``elements`` elements."""
        return self.clip_norm / math.tanh(self.epsilon / 2) * math.sqrt(math.pi) * _gamma_ratio(elements / 2)

    @property
    def release(self) -> Release:
        """See ``Mechanism``."""
        return Release("sphere", epsilon=self.epsilon)

    @property
    def reach(self) -> float:
        """See ``Mechanism``.

        An element is radius * g_i / |g| for normal g, and the radius is at most sqrt(pi d / 2) clip_norm / tanh, which
        is within the bound up to 360 elements. With more elements |g_i| is within ``LARGEST_NORMAL``, and |g| is below
        sqrt(d) / 2 with a probability below e^-(9 d / 64) (Laurent & Massart 2000, lemma 1).
        """
        return 2 * LARGEST_NORMAL * math.sqrt(math.pi / 2) * self.clip_norm / math.tanh(self.epsilon / 2)

    def noised(self, source: ElementSource, norm: float, noise: Noise) -> ElementSource:
        """See ``Mechanism``; one pass finds the half of the sphere that the drawn direction is in."""
        squared, along = _direction(source, noise)
        up, near = noise.coins.words(0, 2).tolist()
        positive = up < _threshold((1 + min(1.0, norm / self.clip_norm)) / 2)
        # Rounded down, so that the ratio of the probabilities is at most e^epsilon.
        within = near < _threshold(1 / (1 + math.exp(-self.epsilon))) - (1 << 12)
        sign = 1.0 if (positive == within) == (along >= 0.0) else -1.0
        size = sum(span.size for span in noise.ranges)
        return _Direction(sign * self.radius(size) / math.sqrt(squared), noise)


@dataclass(frozen=True)
class LocalPrivacy:
    """A randomiser, and the limit of all its updates together.

    Attributes:
        mechanism: adds noise to each update.
        limit: of all rounds and runs together.
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
                f"{self.limit.epsilon:g}: the participant could take part in no round"
            )


def cost(releases: Iterable[Release], delta: float) -> float:
    """The epsilon of noised updates: the smaller of two bounds.

    The first adds the pure epsilons to the exact epsilon of the Gaussians. The second uses zero-concentrated privacy
    for all releases (Bun & Steinke 2016: propositions 1.3, 1.4 and 1.6), which is better for many small epsilons. Both
    hold for a number of releases that the server chooses adaptively.
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
    """A scaled update plus noise, rounded to a grid of 2^-20 of the noise, so that low bits of the sum are not sent."""

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
    """A drawn direction, scaled; it depends on the update only by its sign."""

    def __init__(self, scale: float, noise: Noise) -> None:
        self._scale, self._noise = scale, noise

    def read(self, elements: ElementRange, encoding: Encoding, out: npt.NDArray[np.generic]) -> None:
        write_checked(self._scale * _normals(self._noise, elements), encoding, out, self._noise.max_abs)


def _direction(source: ElementSource, noise: Noise) -> tuple[float, float]:
    """The squared norm of the drawn normals, and their inner product with the update."""
    squares, products = [], []
    for chunk in cut_ranges(noise.ranges, BLOCK_ELEMENTS):
        values, drawn = np.empty(chunk.size), _normals(noise, chunk)
        source.read(chunk, Encoding.FLOAT64, values)
        squares.append(inner_product(drawn, drawn))
        products.append(inner_product(drawn, values))
    return math.fsum(squares), math.fsum(products)


def _normals(noise: Noise, elements: ElementRange) -> npt.NDArray[np.float64]:
    """The normals for the elements' positions in the model, independent of the division into chunks."""
    return np.concatenate([noise.stream.normals(start, stop - start) for start, stop in runs_of(elements)])


def _threshold(chance: float) -> int:
    """The integer t with P(64 random bits < t) equal to this probability."""
    return int(chance * 2**_COIN_BITS)


def _gamma_ratio(x: float) -> float:
    """Gamma(x + 1/2) / Gamma(x); by its series for large x, where logarithms cancel."""
    if x < 1000:
        return math.exp(math.lgamma(x + 0.5) - math.lgamma(x))
    return math.sqrt(x) * (1 - 1 / (8 * x) + 1 / (128 * x * x))


def _check_clip(clip_norm: float) -> None:
    if not 0 < clip_norm < math.inf:
        raise UsageError(f"clip_norm = {clip_norm}; allowed is anything finite above 0")
