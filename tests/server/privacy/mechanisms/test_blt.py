"""Buffered linear Toeplitz noise (Dvijotham et al. 2024, arXiv:2404.16706)."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from atoll.server.privacy.mechanisms import Mechanism, NoiseState, NoiseStateError, Strategy, derived, mechanism_named
from atoll.server.privacy.mechanisms.optimising import best_strategy
from atoll.server.privacy.mechanisms.sensitivity import blt_allowance
from atoll.server.privacy.noise import DiscreteGaussian
from tests.server.privacy.mechanisms.kept import SECRET, Bytes, Integers, Releases

SIGMA = 1e5
STRATEGY = Strategy((0.5, 0.9375), (0.25, 0.125), 6)
ROUNDS = 12


def blt(strategy: Strategy = STRATEGY, rounds: int = ROUNDS) -> Mechanism:
    return mechanism_named("blt", strategy=strategy, rounds=rounds)


def prefix_variance(strategy: Strategy, releases: int) -> list[float]:
    """Return the variances of the prefix sums of ``C**-1 z``, z of variance 1, from the matrix itself."""
    matrix = np.zeros((releases, releases))
    for back, one in enumerate(strategy.coefficients(releases)):
        matrix += one * np.eye(releases, k=-back)
    sums = np.tril(np.ones((releases, releases))) @ np.linalg.inv(matrix)
    return [float(row @ row) for row in sums]


@pytest.mark.parametrize("strategy", [STRATEGY, best_strategy(ROUNDS, 3, 4), best_strategy(ROUNDS, ROUNDS, 1, 3)])
def test_prefix_sums_have_the_variance_of_the_matrix_form(strategy: Strategy) -> None:
    run = Releases(blt(strategy), 20000, SIGMA)
    total = np.zeros(run.size)
    for expected in prefix_variance(strategy, ROUNDS):
        total += run.next()
        assert np.mean(np.square(total)) / SIGMA**2 == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("sigma", [3.0, 1e5, 2.0**48])
def test_the_noise_is_what_the_recurrence_says_exactly(sigma: float) -> None:
    """In exact arithmetic, at any size: z less the rounded sum of buffers, which are rounded to 2**-6."""
    size = 200
    run = Releases(blt(), size, sigma)
    decays, scales = ([Fraction(one) for one in several] for several in (STRATEGY.decays, STRATEGY.scales))
    unit = Fraction(1, 1 << STRATEGY.fraction_bits)
    buffers = [[Fraction(0)] * size for _ in decays]
    for _ in range(7):
        z = np.empty(size, np.int64)
        DiscreteGaussian(sigma).draw(z, derived(run.state.secret, "round", run.state.version, b"set"), 0)
        noise = run.next().tolist()
        for at in range(size):
            mixed = sum((scale * buffer[at] for scale, buffer in zip(scales, buffers, strict=True)), Fraction(0))
            assert noise[at] + nearest(mixed) == z[at]
            for decay, buffer in zip(decays, buffers, strict=True):
                buffer[at] = nearest(decay * buffer[at] / unit) * unit + noise[at]


def nearest(value: Fraction) -> int:
    return (value + Fraction(1, 2)).__floor__()


def test_buffers_stay_within_int64_for_the_largest_noise_there_is() -> None:
    """z is 16 times the largest sigma, with the signs that maximise each buffer of each strategy."""
    for rounds, strategy in ((ROUNDS, STRATEGY), (400, best_strategy(400, 400, 1)), (400, best_strategy(400, 1, 400))):
        unit = 1 << strategy.fraction_bits
        for number in range(strategy.buffers):
            step = np.diag(strategy.decays) - np.outer(np.ones(strategy.buffers), strategy.scales)
            state, kernel = np.ones(strategy.buffers), []
            for _ in range(rounds):
                kernel.append(state[number])
                state = step @ state
            worst = sum(abs(one) for one in kernel) * 16 * 2.0**48 * unit
            assert worst < 2.0**62


def test_of_equal_outputs_the_centres_differ_by_the_allowance_at_most() -> None:
    """For two neighbouring sums with the same outputs, z differs by C (x - x') and the effect of rounding."""
    rounds, size, rng = 40, 4000, np.random.default_rng(1)
    strategy = best_strategy(rounds, rounds, 1, 3)
    first = strategy.coefficients(rounds)
    difference = rng.integers(-1000, 1000, size)
    outputs = rng.integers(-(10**6), 10**6, (rounds, size))
    other = outputs.copy()
    other[0] += difference  # the participant is in the first round only
    steps = centres(strategy, other) - centres(strategy, outputs)
    assert np.max(np.abs(steps - first[:, None] * difference)) < 1 + strategy.rounding
    norms = np.sqrt(np.cumsum(np.square(first)))
    moved = np.sqrt(np.cumsum(np.sum(np.square(steps), axis=1)))
    bound = norms * (np.linalg.norm(difference) + blt_allowance(size, strategy, rounds))
    assert np.all(moved <= bound)


def centres(strategy: Strategy, noise: Integers) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return z for the noise of all rounds, shape (rounds, elements)."""
    unit = 2.0**strategy.fraction_bits
    buffers = np.zeros((strategy.buffers, noise.shape[1]))
    found = []
    for row in noise:
        found.append(row + np.floor(np.array(strategy.scales) @ buffers + 0.5))
        buffers = np.floor(np.array(strategy.decays)[:, None] * buffers * unit + 0.5) / unit + row
    return np.array(found)


def test_the_allowance_covers_what_rounding_adds_in_every_prefix() -> None:
    norms = np.sqrt(np.cumsum(np.square(STRATEGY.coefficients(ROUNDS))))
    added = [(1 + STRATEGY.rounding) * math.sqrt(1000 * later) for later in range(ROUNDS)]
    assert min(norms * blt_allowance(1000, STRATEGY, ROUNDS) - added) == pytest.approx(0.0, abs=1e-9)
    assert blt_allowance(1000, STRATEGY, 1) == 0.0


def test_buffers_take_the_place_of_those_before() -> None:
    run = Releases(blt(), 10, SIGMA)
    sizes = []
    for _ in range(3):
        assert run.noise().kept_values == 2
        run.next()
        sizes.append({name: one.size_bytes for name, one in run.history.items()})
    assert sizes == [{"buffers": 10 * 2 * 8}] * 3
    assert run.mechanism.needs == ("buffers",)


def test_kept_buffers_say_nothing_without_the_state() -> None:
    run = Releases(blt(), 4000, 1000.0)
    noise = run.noise()
    block = noise.block(0, 4000)
    stored = noise.seal(block, 0)
    values = np.frombuffer(stored.tobytes(), np.uint8)
    counts = np.bincount(values, minlength=256)
    assert np.square(counts - values.size / 256).sum() / (values.size / 256) < 350  # chi-square, 255 degrees: p < 1e-4


def test_blocks_and_restarts_change_nothing() -> None:
    run = Releases(blt(), 3001, SIGMA)
    for _ in range(4):
        run.next()
    noise = run.noise()
    whole = noise.block(0, 3001)
    again = run.mechanism.round(NoiseState.from_json(run.state.to_json()), 4, b"set", SIGMA, run.history)
    np.testing.assert_array_equal(whole, np.concatenate([again.block(0, 777), again.block(777, 3001)]))
    np.testing.assert_array_equal(
        noise.seal(whole, 0), np.concatenate([again.seal(whole[:777], 0), again.seal(whole[777:], 777)])
    )


def test_the_key_of_the_buffers_is_another_one_after_each_release() -> None:
    run = Releases(blt(), 10, SIGMA)
    keys = []
    for _ in range(3):
        run.next()
        keys.append(run.state.kept["buffers"].key)
    assert len(set(keys)) == 3
    assert run.state.kept.keys() == {"buffers"}


def test_missing_or_short_buffers_are_refused() -> None:
    run = Releases(blt(), 10, SIGMA)
    run.next()
    kept = run.history.pop("buffers")
    with pytest.raises(NoiseStateError, match="buffers, which release 1 needs, was not kept"):
        run.next()
    run.history["buffers"] = Bytes(kept.data[:-8])
    with pytest.raises(NoiseStateError, match="152 bytes, needed are 160"):
        run.next()


def test_a_state_without_its_key_another_sigma_or_a_round_beyond_the_plan_is_refused() -> None:
    with pytest.raises(NoiseStateError, match=r"release 2 needs \['buffers'\], stored are keys of \[\]"):
        blt().round(NoiseState("blt", 2, SECRET), 2, b"", SIGMA, {})
    run = Releases(blt(rounds=1), 10, SIGMA)
    run.next()
    with pytest.raises(ValueError, match="release 1: these buffers are exact for 1 rounds"):
        run.next()
    run = Releases(blt(), 10, SIGMA)
    run.next()
    run.sigma *= 2
    with pytest.raises(ValueError, match="earlier noise of this run has 100000"):
        run.next()
    with pytest.raises(ValueError, match="exact up to"):
        Releases(blt(), 10, 2.0**49).next()


def test_it_needs_a_strategy() -> None:
    with pytest.raises(ValueError, match="no strategy"):
        mechanism_named("blt")
