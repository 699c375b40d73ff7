"""The sampler against its definition, against the exact sampler, and against the distribution itself.

The distribution is Canonne, Kamath, Steinke 2020, Definition 1; the exact sampler their Algorithms 1 to 3.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import threading
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from atoll.accounting.gaussian import delta_of
from atoll.server.privacy.noise import DiscreteGaussian, discrete, sigma_for
from atoll.server.privacy.noise.settling import settle
from atoll.server.privacy.noise.tables import tables_of
from tests.server.privacy.noise.exact import Exact

Integers = npt.NDArray[np.int64]
KEY = bytes(range(32))
SIGMAS = [0.3, 1.0, 3.3, 31.9, 63.99, 64.0, 1000.5, 2.0**20, 1.3 * 2.0**33, 2.0**50]
"""Below 64 each integer is a block of its own; from 64 on there are low bits: 45 of them at last."""


def drawn(sigma: float, size: int, key: bytes = KEY, start: int = 0) -> Integers:
    out = np.empty(size, np.int64)
    DiscreteGaussian(sigma).draw(out, key, start)
    return out


def same_distribution(counts: Integers) -> float:
    """The p-value of Pearson's chi-square test of homogeneity; counts is (samples, bins)."""
    counts = counts[:, counts.sum(axis=0) > 0]
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    statistic = float(np.sum(np.square(counts - expected) / expected))
    return float(stats.chi2.sf(statistic, counts.shape[1] - 1))


@pytest.mark.parametrize("sigma", SIGMAS)
def test_loops_decide_as_the_definition_does(sigma: float) -> None:
    """Bit for bit, also in elements far from the first: float64 rounding never affects a sample."""
    size, start = 3000, 10**12
    tables = tables_of(sigma)
    assert drawn(sigma, size, start=start).tolist() == [settle(tables, KEY, start + at) for at in range(size)]


@pytest.mark.parametrize("sigma", [31.9, 64.0, 2.0**40])
def test_what_loops_cannot_decide_is_rare_and_left_to_the_definition(sigma: float) -> None:
    size = 1 << 22
    with mock.patch.object(discrete, "settle", wraps=settle) as asked:
        values = drawn(sigma, size)
    assert (0 if sigma < 64 else 4) <= asked.call_count <= 60  # of 16 expected where there are coins
    for call in asked.call_args_list:
        tables, key, element = call.args
        assert values[element] == settle(tables, key, element)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_agrees_with_the_exact_sampler(sigma: float) -> None:
    """Canonne, Kamath, Steinke 2020: chi-square of both samples' counts, tails as bins of their own."""
    exact = Exact(sigma, seed=1)
    oracle = np.array([exact.sample() for _ in range(20000)])
    values = drawn(sigma, 400_000)
    cuts = np.unique(np.round(sigma * np.concatenate([[-3.5, -3], np.linspace(-2.5, 2.5, 26), [3, 3.5]]))) + 0.5
    table = np.array([np.bincount(np.digitize(sample, cuts), minlength=cuts.size + 1) for sample in (oracle, values)])
    assert same_distribution(table) > 1e-3


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.7, 40.0, 100.3])
def test_agrees_with_the_distribution_far_into_the_tails(sigma: float) -> None:
    """10 million samples: every integer expected at least 10 times is a bin; the tails are two more."""
    size, reach = 10_000_000, math.ceil(8 * sigma)
    values = drawn(sigma, size)
    points = np.arange(-reach, reach + 1)
    chances = np.exp(-np.square(points / sigma) / 2)
    expected = size * chances / chances.sum()
    kept = expected >= 10
    counts = np.bincount(np.clip(values, -reach, reach) + reach, minlength=points.size)
    negative, positive = points < points[kept][0], points > points[kept][-1]
    observed = np.concatenate([[counts[negative].sum()], counts[kept], [counts[positive].sum()]])
    wanted = np.concatenate([[expected[negative].sum()], expected[kept], [expected[positive].sum()]])
    statistic = float(np.sum(np.square(observed - wanted) / wanted))
    assert stats.chi2.sf(statistic, observed.size - 1) > 1e-3


def test_the_tails_of_a_large_sigma_are_there() -> None:
    """Among 20 million samples the numbers beyond 4, 4.5 and 5 sigma are as expected."""
    sigma, size = 2.0**35, 20_000_000
    values = np.abs(drawn(sigma, size) / sigma)
    for reach in (4.0, 4.5, 5.0):
        expected = size * 2 * stats.norm.sf(reach)
        assert stats.poisson.cdf(np.count_nonzero(values > reach), expected) == pytest.approx(0.5, abs=0.499)


def test_low_bits_are_uniform() -> None:
    values = drawn(1.3 * 2.0**33, 1_000_000)
    for shift in (0, 10, 20):
        counts = np.bincount((values >> shift) & 255, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-3


def test_any_cut_of_a_range_gives_the_same_samples() -> None:
    size, start = 300_001, 12_345
    whole = drawn(1e4, size, start=start)
    cuts = [0, 1, 2, 17, 16_384, 16_385, 131_071, 131_072, 131_073, 262_144, 300_000, size]
    parts = [drawn(1e4, stop - at, start=start + at) for at, stop in itertools.pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert drawn(1e4, 0).size == 0


def test_different_keys_are_independent_and_so_are_neighbours() -> None:
    one, other = drawn(1e6, 1_000_000), drawn(1e6, 1_000_000, key=bytes(32))
    assert np.count_nonzero(one == other) < 10
    limit = 4.5 / math.sqrt(one.size)
    assert abs(np.corrcoef(one, other)[0, 1]) < limit
    assert abs(np.corrcoef(np.square(one / 1e6), np.square(other / 1e6))[0, 1]) < limit
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < limit
    signs = np.bincount((one > 0) + 2 * (other > 0), minlength=4)
    assert stats.chisquare(signs).pvalue > 1e-3


KNOWN = {
    1.0: "6cb5a5d3a963ffa6a7a8c87c6b33cbde1b2aed2b1d5a508c711966553ac7391f",
    31.9: "0a93fd157650b1b136f45ede8fcb0a6f349b8d708d1f53f9952db3b6c184bb01",
    64.0: "35c181bc2cac31adc30b52de2bc7d424bee1d0bb3177870fe225fcbe05c9497c",
    1000.5: "430f57e110dca4380dbaa13ff773b4f8c4118c9bf7bbe447330382f5fc015c83",
    1.3 * 2.0**33: "8c5b9e133820c7c78d89f3c3f3b2bf3af151c6d472ef188c3e7b1e9999050511",
    2.0**50: "fa112593bd1a3a663d777b666ca76c80e17ee357b3761fba58be5d3ffc498984",
}
"""SHA-256 of 200,000 samples from element 5 on, as little-endian int64."""


@pytest.mark.parametrize("sigma", KNOWN)
def test_samples_are_those_of_every_other_version(sigma: float) -> None:
    """A run that continues on a newer server must get the same noise, so never change these."""
    samples = drawn(sigma, 200_000, start=5).astype("<i8").tobytes()
    assert hashlib.sha256(samples).hexdigest() == KNOWN[sigma]


def test_first_samples_are_known() -> None:
    assert drawn(10.0, 8).tolist() == [-13, 16, -11, 2, 0, -9, -16, -3]
    assert drawn(2.0**30, 4).tolist() == [-1409408187, -1026835741, -1214661808, 257521663]


def test_many_threads_draw_at_once() -> None:
    size, parts = 1 << 19, 16
    expected = drawn(1e9, size)
    found, step = np.empty(size, np.int64), size // parts
    noise, failed = DiscreteGaussian(1e9), []

    def draw(at: int) -> None:
        try:
            noise.draw(found[at : at + step], KEY, at)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    threads = [threading.Thread(target=draw, args=(at,)) for at in range(0, size, step)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    np.testing.assert_array_equal(found, expected)


def test_a_forked_process_draws_the_same() -> None:
    """There is no generator state that a fork could share."""
    expected = hashlib.sha256(drawn(1e5, 50_000).tobytes()).digest()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, hashlib.sha256(drawn(1e5, 50_000).tobytes()).digest())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        assert stream.read() == expected
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("sigma", [0.0, -1.0, 2.0**-5, 2.0**51, math.inf, math.nan])
def test_a_sigma_that_cannot_be_drawn_is_refused(sigma: float) -> None:
    with pytest.raises(ValueError, match=r"discrete noise is drawn for 0.0625 to 2\*\*50"):
        DiscreteGaussian(sigma)


def test_bad_keys_and_ranges_are_refused() -> None:
    noise, out = DiscreteGaussian(1.0), np.empty(4, np.int64)
    with pytest.raises(ValueError, match="32 bytes, not 16"):
        noise.draw(out, bytes(16), 0)
    with pytest.raises(ValueError, match="numbered from 0"):
        noise.draw(out, KEY, -1)
    with pytest.raises(ValueError, match="numbered from 0"):
        noise.draw(out, KEY, 2**63 - 3)


@pytest.mark.parametrize(("continuous", "shift"), [(3.0, 1), (3.0, 4), (50.0, 7), (1000.0, 333), (1000.0, 2500)])
def test_what_is_drawn_costs_no_more_than_the_continuous_noise_that_is_accounted(continuous: float, shift: int) -> None:
    """With the same sigma it would cost more: delta is above the continuous one at some epsilon."""
    mu = shift / continuous

    def delta(sigma: float, epsilon: float) -> float:
        x = np.arange(-math.ceil(30 * sigma), math.ceil(30 * sigma) + shift)
        total = math.fsum(np.exp(-(x**2) / (2 * sigma**2)))
        with_it, without = (np.exp(-((x - at) ** 2) / (2 * sigma**2)) / total for at in (shift, 0))
        return math.fsum(np.maximum(with_it - math.exp(epsilon) * without, 0.0))

    epsilons = [part * mu * (1 + mu / 2) for part in (0.0, 0.1, 0.31, 0.5, 0.77, 1.0, 1.3, 2.0, 3.0)]
    assert all(delta(sigma_for(continuous), epsilon) <= delta_of(epsilon, mu) for epsilon in epsilons)
    assert any(delta(continuous, epsilon) > delta_of(epsilon, mu) for epsilon in epsilons)
