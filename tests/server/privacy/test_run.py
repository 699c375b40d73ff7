from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.server.errors import CorruptDataError
from atoll.server.privacy.capacity import most_members
from atoll.server.privacy.contract import AdaptiveClipping, Contract
from atoll.server.privacy.events import Adjacency, Sampling
from atoll.server.privacy.mechanisms import NoiseStateError
from atoll.server.privacy.run import PrivateRun, Summed
from atoll.server.privacy.scale import LEAST_NOISE

CONTRACT = Contract(
    population="people",
    mechanism="gaussian",
    adjacency=Adjacency.ADD_REMOVE,
    accountant="prv",
    sampling=Sampling.POISSON,
    sample_rate=0.1,
    epsilon=None,
    delta=1e-5,
    noise_multiplier=1.5,
    clip=0.5,
    adaptive=None,
    weight_bound=1,
    divisor_weight=100,
    rounds=10,
)


def summed(run: PrivateRun, binding: bytes = b"one", norms: tuple[float, ...] = (0.1, 2.0)) -> Summed:
    return Summed(run.grid(100, 32.0), 1000, binding, norms)


def test_a_run_reads_back_as_it_was_stored() -> None:
    run = PrivateRun.begin(CONTRACT, 3.5)
    again = PrivateRun.from_text(run.to_text())
    assert (again.contract, again.epsilon, again.state) == (run.contract, run.epsilon, run.state)
    later = run.after_release(summed(run))
    assert PrivateRun.from_text(later.to_text()).state == later.state


@pytest.mark.parametrize("text", ["", "{}", '{"clip": "0x1p-1"}', '{"clip": 1, "noise": {}, "contract": {}}'])
def test_a_damaged_state_is_reported(text: str) -> None:
    with pytest.raises(CorruptDataError, match="damaged"):
        PrivateRun.from_text(text)


def test_the_secret_is_not_shown() -> None:
    run = PrivateRun.begin(CONTRACT, 3.5)
    assert run.state.noise.secret.hex() not in repr(run.state)
    assert repr(run.state.noise.secret) not in repr(run.state)


def test_the_same_sum_has_the_same_noise_and_another_set_another() -> None:
    run = PrivateRun.begin(CONTRACT, 3.5)
    again = PrivateRun.from_text(run.to_text())
    noise = run.noise(summed(run), {}).block(0, 1000)
    assert (again.noise(summed(again), {}).block(0, 1000) == noise).all()
    assert (run.noise(summed(run, b"other"), {}).block(0, 1000) != noise).mean() > 0.99


def test_noise_is_as_wide_as_the_contract_says_in_the_grids_units() -> None:
    run = PrivateRun.begin(replace(CONTRACT, weight_bound=4, divisor_weight=400), 3.5)
    total = summed(run)
    deviation = run.noise(total, {}).block(0, 1000).std()
    assert deviation == pytest.approx(1.5 * 4 * 0.5 * total.grid.scale, rel=0.15)


def test_what_was_released_cannot_be_noised_again() -> None:
    run = PrivateRun.begin(CONTRACT, 3.5)
    later = run.after_release(summed(run))
    assert later.state.version == 1
    assert later.state.noise.secret != run.state.noise.secret
    stale = PrivateRun(CONTRACT, 3.5, replace(later.state, noise=replace(later.state.noise, mechanism="tree")))
    with pytest.raises(NoiseStateError, match="not of gaussian"):
        stale.noise(summed(stale), {})


def test_the_grid_does_not_tell_how_many_were_drawn() -> None:
    run = PrivateRun.begin(CONTRACT, 3.5)
    assert run.grid(0, 32.0) == run.grid(100, 32.0) == run.grid(1500, 32.0)


@pytest.mark.parametrize("size", [1, 3, 100, 5000])
def test_the_grid_is_the_same_for_as_many_as_can_be_invited(size: int) -> None:
    """Correlated noise takes a run's first grid to its last round."""
    run = PrivateRun.begin(replace(CONTRACT, divisor_weight=7 * size, weight_bound=7), 3.5)
    assert run.grid(7 * most_members(size), 32.0) == run.grid(0, 32.0)


def adaptive(clip: float, noise: float = 2**-5) -> PrivateRun:
    settings = AdaptiveClipping(clip, quantile=0.5, learning_rate=0.2, count_noise=noise)
    return PrivateRun.begin(replace(CONTRACT, clip=clip, adaptive=settings, divisor_weight=2), 3.5)


@pytest.mark.parametrize(
    ("norms", "moves"),
    [((0.1, 0.2), -1), ((2.0, 3.0), 1), ((0.1, 2.0), 0), ((), 0), ((1.0, 1.0), 1)],  # clipped by itself: clipped
)
def test_an_adaptive_norm_follows_the_count(norms: tuple[float, ...], moves: int) -> None:
    run = adaptive(1.0)
    after = run.after_release(summed(run, norms=norms)).state.clip
    assert (after > 1.04) - (after < 0.96) == moves


def test_an_adaptive_norm_stops_where_the_grid_would_be_too_coarse_for_its_noise() -> None:
    run = adaptive(1.0)
    for _ in range(400):  # all updates are within any norm: it falls by a tenth each time
        run = run.after_release(summed(run, norms=(0.0, 0.0)))
    grid = run.grid(0, 32.0)
    units = run.contract.noise_multiplier * run.contract.weight_bound * run.state.clip * grid.scale
    assert LEAST_NOISE <= units < 1.01 * LEAST_NOISE


def test_terms_tell_the_norm_in_force() -> None:
    run = adaptive(1.0)
    later = run.after_release(summed(run, norms=(5.0, 5.0)))
    assert later.terms.clip_norm == later.state.clip > 1.0
    assert (later.terms.epsilon, later.terms.population) == (3.5, "people")


def test_terms_tell_the_noise_that_the_release_is_accounted_with() -> None:
    """The terms name the noise of the whole release, not the larger one on the updates: counts are released too."""
    run = adaptive(1.0, noise=1.0)
    assert run.terms.noise_multiplier == run.contract.accounted_noise < run.contract.noise_multiplier
