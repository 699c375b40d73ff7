"""Banded Toeplitz factorisation (Choquette-Choo et al. 2023; Fichtenberger et al. 2023)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from atoll.server.privacy.mechanisms import NoiseState, NoiseStateError, derived, mechanism_named
from atoll.server.privacy.mechanisms.sensitivity import banded_allowance, banded_coefficients
from atoll.server.privacy.noise import DiscreteGaussian
from tests.server.privacy.mechanisms.kept import SECRET, Bytes, Releases

SIGMA = 1e5


def prefix_variance(bands: int, releases: int) -> list[float]:
    """Return the variances of the prefix sums of ``C**-1 z``, z of variance 1, from the matrix itself."""
    coefficients = banded_coefficients(bands)
    matrix = np.zeros((releases, releases))
    for back, one in enumerate(coefficients[:releases]):
        matrix += one * np.eye(releases, k=-back)
    sums = np.tril(np.ones((releases, releases))) @ np.linalg.inv(matrix)
    return [float(row @ row) for row in sums]


@pytest.mark.parametrize("bands", [1, 2, 5])
def test_prefix_sums_have_the_variance_of_the_matrix_form(bands: int) -> None:
    releases = 12
    run = Releases(mechanism_named("banded", bands), 20000, SIGMA)
    total = np.zeros(run.size)
    for expected in prefix_variance(bands, releases):
        total += run.next()
        assert np.mean(np.square(total)) / SIGMA**2 == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("sigma", [3.0, 1e5, 2.0**48])
def test_correlated_with_its_past_the_noise_is_z_exactly(sigma: float) -> None:
    """``n_t + round(sum of c_j n_(t - j))`` is the discrete Gaussian's draw, in exact arithmetic, at any size."""
    bands, size = 4, 200
    run = Releases(mechanism_named("banded", bands), size, sigma)
    exact = [Fraction(one) for one in banded_coefficients(bands)]
    past: list[list[int]] = []
    for _ in range(7):
        key = derived(run.state.secret, "round", run.state.version, b"set")
        z = np.empty(size, np.int64)
        DiscreteGaussian(sigma).draw(z, key, 0)
        noise = run.next().tolist()
        for at in range(size):
            mixed = sum((exact[back] * past[-back][at] for back in range(1, min(bands, len(past) + 1))), Fraction(0))
            assert noise[at] + (mixed + Fraction(1, 2)).__floor__() == z[at]
        past.append(noise)


def test_of_equal_outputs_the_centres_differ_by_the_allowance_at_most() -> None:
    """For two neighbouring sums with the same outputs, z differs by C (x - x') and less than 1 per element."""
    bands, size, rng = 6, 4000, np.random.default_rng(1)
    coefficients = banded_coefficients(bands)
    difference = rng.integers(-1000, 1000, size)
    outputs = rng.integers(-(10**6), 10**6, (bands, size))
    norms = np.sqrt(np.cumsum(np.square(coefficients)))
    other = outputs.copy()
    other[0] += difference  # the participant is in the first round only
    moved = 0.0
    for release in range(bands):
        centres = []
        for noise in (outputs, other):
            earlier = sum(coefficients[back] * noise[release - back] for back in range(1, release + 1))
            centres.append(noise[release] + np.floor(np.asarray(earlier) + 0.5))
        step = np.asarray(centres[1] - centres[0])
        assert np.max(np.abs(step - coefficients[release] * difference)) < 1
        moved += float(step @ step)
        bound = norms[release] * (np.linalg.norm(difference) + banded_allowance(size, bands))
        assert np.sqrt(moved) <= bound


def test_kept_noise_goes_round_in_as_many_places_as_are_needed() -> None:
    run = Releases(mechanism_named("banded", 4), 10, SIGMA)
    names = []
    for _ in range(5):
        names.append(run.noise().keeps)
        run.next()
    assert names == ["noise-0", "noise-1", "noise-2", "noise-0", "noise-1"]
    assert set(run.history) == set(run.mechanism.needs) == set(run.state.kept)
    assert mechanism_named("banded", 1).needs == ()


def test_kept_noise_says_nothing_without_the_state() -> None:
    run = Releases(mechanism_named("banded", 2), 4000, 1000.0)
    noise = run.noise()
    block = noise.block(0, 4000)
    stored = noise.seal(block, 0)
    values = np.frombuffer(stored.tobytes(), np.uint8)
    counts = np.bincount(values, minlength=256)
    assert np.square(counts - values.size / 256).sum() / (values.size / 256) < 350  # chi-square, 255 degrees: p < 1e-4
    np.testing.assert_array_equal(np.concatenate([noise.seal(block[:7], 0), noise.seal(block[7:], 7)]), stored)


def test_blocks_and_restarts_change_nothing() -> None:
    run = Releases(mechanism_named("banded", 3), 3001, SIGMA)
    for _ in range(4):
        run.next()
    whole = run.noise().block(0, 3001)
    again = run.mechanism.round(NoiseState.from_json(run.state.to_json()), 4, b"set", SIGMA, run.history)
    np.testing.assert_array_equal(whole, np.concatenate([again.block(0, 777), again.block(777, 3001)]))


def test_what_is_kept_is_forgotten_in_time() -> None:
    """After ``bands - 1`` further releases no key of a release's noise is left."""
    run = Releases(mechanism_named("banded", 3), 10, SIGMA)
    run.next()
    key = run.state.kept["noise-0"].key
    run.next()
    assert key in {one.key for one in run.state.kept.values()}
    run.next()
    assert key not in {one.key for one in run.state.kept.values()}


def test_missing_or_short_kept_noise_is_refused() -> None:
    run = Releases(mechanism_named("banded", 3), 10, SIGMA)
    run.next()
    kept = run.history.pop("noise-0")
    with pytest.raises(NoiseStateError, match="noise-0, noise that release 1 needs, was not kept"):
        run.next()
    run.history["noise-0"] = Bytes(kept.data[:-8])
    with pytest.raises(NoiseStateError, match="72 bytes, needed are 80"):
        run.next()


def test_a_state_of_other_bands_is_refused() -> None:
    with pytest.raises(NoiseStateError, match="release 2 of 3 bands needs"):
        mechanism_named("banded", 3).round(NoiseState("banded", 2, SECRET), 2, b"", SIGMA, {})


def test_sizes_beyond_what_is_exact_are_refused() -> None:
    with pytest.raises(ValueError, match="exact up to"):
        Releases(mechanism_named("banded", 2), 10, 2.0**49).next()
    with pytest.raises(ValueError, match="0 bands"):
        mechanism_named("banded", 0)


def test_one_band_keeps_nothing() -> None:
    noise = Releases(mechanism_named("banded", 1), 10, SIGMA).noise()
    assert noise.keeps is None
    with pytest.raises(NoiseStateError, match="not kept"):
        noise.seal(np.zeros(3, np.int64), 0)
