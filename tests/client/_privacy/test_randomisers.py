"""Local randomisers: means, variances, how well two updates can be distinguished; a repeated chunk reveals nothing."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from atoll.accounting.gaussian import delta_of, epsilon_of
from atoll.client import UpdateError, UsageError
from atoll.client._privacy.clipping import norm_of
from atoll.client._privacy.keystream import Keystream
from atoll.client._privacy.ledger import Limit, Release
from atoll.client._privacy.randomisers import Gaussian, LocalPrivacy, Mechanism, Noise, Sphere, cost
from atoll.client._transfer.elements import cut_ranges
from atoll.wire.chunks import ElementRange
from atoll.wire.encoding import Encoding

pytestmark = pytest.mark.slow

Floats = npt.NDArray[np.float64]


@dataclass
class Values:
    """An ``ElementSource`` of these values."""

    values: Floats

    def read(self, elements: ElementRange, encoding: Encoding, out: npt.NDArray[np.generic]) -> None:
        assert encoding is Encoding.FLOAT64
        out[:] = self.values[elements.offset : elements.offset + elements.size]


def key(seed: int) -> bytes:
    return hashlib.blake2b(str(seed).encode(), digest_size=32).digest()


def randomised(mechanism: Mechanism, values: Floats, seed: int = 0, chunk: int = 1 << 16, **fields: float) -> Floats:
    """The values as they would be sent, in chunks of this size."""
    whole = (ElementRange.run(0, values.size),)
    noise = Noise(whole, Keystream(key(2 * seed)), Keystream(key(2 * seed + 1)), fields.get("max_abs", 1e6))
    noised = mechanism.noised(Values(values), norm_of(Values(values), whole), noise)
    out = np.empty(values.size)
    for piece in cut_ranges(whole, chunk):
        noised.read(piece, Encoding.FLOAT64, out[piece.offset : piece.stop])
    return out


MECHANISMS = [Gaussian(1.0, 1e-5, 2.0), Sphere(1.0, 2.0)]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("chunk", [1, 7, 100, 1000])
def test_a_chunk_that_is_sent_again_has_the_same_noise(mechanism: Mechanism, chunk: int) -> None:
    """This also holds if it is cut differently: two different copies would average to less noise than was charged."""
    values = np.random.default_rng(1).normal(size=300)
    np.testing.assert_array_equal(randomised(mechanism, values, chunk=chunk), randomised(mechanism, values))
    assert not np.array_equal(randomised(mechanism, values, seed=1), randomised(mechanism, values))


def test_gaussian_noise_is_calibrated_to_twice_the_clip_norm() -> None:
    """Any two clipped updates are at most 2 clip_norm apart."""
    mechanism = Gaussian(1.0, 1e-5, clip_norm=3.0)
    assert delta_of(1.0, 2 * 3.0 / mechanism.std) <= 1e-5
    assert delta_of(1.0, 2 * 3.0 / mechanism.std * (1 + 1e-6)) > 1e-5


@pytest.mark.parametrize("length", [0.0, 1.0, 50.0])
def test_gaussian_noise_is_normal_around_the_clipped_update(length: float) -> None:
    mechanism = Gaussian(2.0, 1e-5, clip_norm=2.0)
    values = np.random.default_rng(1).normal(size=200_000)
    values *= length / np.linalg.norm(values)
    clipped = values * min(1.0, 2.0 / length if length else 1.0)
    drawn = (randomised(mechanism, values) - clipped) / mechanism.std
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    assert abs(float(drawn @ clipped)) < 4 * max(1e-9, float(np.linalg.norm(clipped)))
    assert 4.0 < np.abs(drawn).max() < 7.0


def test_what_is_sent_lies_on_a_grid() -> None:
    """Low bits of floating-point sums reveal what was added (Mironov 2012), so they are not sent."""
    mechanism = Gaussian(1.0, 1e-5, 1.0)
    sent = randomised(mechanism, np.random.default_rng(1).normal(size=1000))
    grid = 2.0 ** (math.floor(math.log2(mechanism.std)) - 20)
    np.testing.assert_array_equal(sent, np.rint(sent / grid) * grid)
    assert 1e-7 < grid / mechanism.std < 1e-6


@pytest.mark.parametrize(("elements", "epsilon"), [(1, 0.5), (2, 1.0), (3, 1.0), (10, 2.0), (1500, 0.1), (3001, 1.0)])
def test_the_spheres_radius_is_the_papers(elements: int, epsilon: float) -> None:
    """Duchi et al. 2018, eq. (26): r (e^eps + 1)/(e^eps - 1) sqrt(pi) d Gamma((d - 1)/2 + 1) / (2 Gamma(d/2 + 1))."""
    logs = math.lgamma((elements - 1) / 2 + 1) - math.lgamma(elements / 2 + 1)
    ratio = (math.exp(epsilon) + 1) / (math.exp(epsilon) - 1)
    expected = 1.5 * ratio * math.sqrt(math.pi) * elements / 2 * math.exp(logs)
    assert Sphere(epsilon, 1.5).radius(elements) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("length", [0.0, 0.7, 2.0, 9.0])
def test_the_spheres_mean_and_error_are_as_stated(length: float) -> None:
    mechanism, elements, draws = Sphere(1.5, clip_norm=2.0), 6, 6_000
    values = np.arange(1.0, elements + 1)
    values *= length / np.linalg.norm(values)
    clipped = values * min(1.0, 2.0 / length if length else 1.0)
    sent = np.array([randomised(mechanism, values, seed) for seed in range(draws)])
    radius = mechanism.radius(elements)
    np.testing.assert_allclose(np.linalg.norm(sent, axis=1), radius)
    error = radius / math.sqrt(elements * draws)
    np.testing.assert_allclose(sent.mean(axis=0), clipped, atol=4.5 * error)
    squared = ((sent - clipped) ** 2).sum(axis=1)
    stated = radius**2 - float(clipped @ clipped)
    assert abs(squared.mean() - stated) < 4.5 * squared.std() / math.sqrt(draws) + 1e-9
    assert stated <= math.pi / 2 * 4 * elements / math.tanh(0.75) ** 2


def test_the_sphere_keeps_its_epsilon_and_uses_it() -> None:
    """Opposite updates differ most: the probability of any half of the sphere changes by e^epsilon, and no more."""
    mechanism, draws = Sphere(1.0, 1.0), 10_000
    axis = np.eye(3)[0]
    above = [sum(randomised(mechanism, sign * axis, seed)[0] > 0 for seed in range(draws)) for sign in (1, -1)]
    log_ratio = math.log(above[0] / above[1])
    spread = math.sqrt(sum(1 / count - 1 / draws for count in above))
    assert abs(log_ratio - 1.0) < 4 * spread


def test_which_directions_can_come_does_not_depend_on_the_update() -> None:
    """With the same key any update gives one of two vectors, bit by bit: rounding reveals nothing."""
    values = np.random.default_rng(1).normal(size=(20, 50))
    sent = {np.abs(randomised(Sphere(1.0, 1.0), row)).tobytes() for row in values}
    assert len(sent) == 1


def test_the_coin_is_rounded_towards_privacy() -> None:
    for epsilon in (1e-3, 1.0, 30.0):
        larger = int((1 / (1 + math.exp(-epsilon))) * 2**64) - (1 << 12)
        assert math.log(larger / (2**64 - larger)) <= epsilon


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("elements", [1, 2, 360, 361, 5000])
def test_randomised_values_stay_below_the_mechanisms_reach(mechanism: Mechanism, elements: int) -> None:
    values = np.full(elements, 1.0)
    assert max(np.abs(randomised(mechanism, values, seed)).max() for seed in range(50)) < mechanism.reach
    with pytest.raises(UpdateError, match="the server accepts up to"):
        randomised(mechanism, values, max_abs=1e-3)


def test_gaussians_add_up_exactly() -> None:
    """A hundred updates with noise 4 cost as much as one with noise 0.4: exactly 13.2067 at delta 1e-5."""
    assert cost([Release("gaussian", noise_multiplier=4.0, count=100)], 1e-5) == pytest.approx(13.2067, abs=5e-5)
    halves = [Release("gaussian", noise_multiplier=4.0, count=50)] * 2
    assert cost(halves, 1e-5) == pytest.approx(13.2067, abs=5e-5)


def test_epsilons_add_up_or_better() -> None:
    few, many = (Release("sphere", epsilon=0.1, count=count) for count in (2, 1000))
    assert cost([few], 1e-5) == pytest.approx(0.2)
    assert cost([many], 0.0) == pytest.approx(100.0)
    rho = 1000 * 0.1**2 / 2
    assert cost([many], 1e-5) == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1e5)))
    mixed = cost([few, Release("gaussian", noise_multiplier=1.0)], 1e-5)
    assert mixed == pytest.approx(0.2 + epsilon_of(1e-5, 1.0))
    assert cost([Release("gaussian", noise_multiplier=1.0)], 0.0) == math.inf
    assert cost([Release("gaussian", noise_multiplier=1e-320), Release("sphere", epsilon=1e300)], 1e-5) == math.inf


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(0.0, 1e-5, 1.0),
        lambda: Gaussian(1.0, 0.0, 1.0),
        lambda: Gaussian(1.0, 1e-5, 0.0),
        lambda: Gaussian(1.0, 1e-5, math.inf),
        lambda: Sphere(0.0, 1.0),
        lambda: Sphere(31.0, 1.0),
        lambda: Sphere(math.nan, 1.0),
        lambda: Sphere(1.0, math.nan),
    ],
)
def test_parameters_that_cannot_be(make: object) -> None:
    assert callable(make)
    with pytest.raises(UsageError):
        make()


def test_a_limit_that_allows_no_round_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="one update costs epsilon 2 at delta 0, above the limit 1"):
        LocalPrivacy(Sphere(2.0, 1.0), Limit(1.0, 0.0))
    with pytest.raises(UsageError, match="costs epsilon unbounded"):
        LocalPrivacy(Gaussian(1.0, 1e-6, 1.0), Limit(8.0, 0.0))
