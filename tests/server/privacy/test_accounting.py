"""The account against independent ones: reference values, dp-accounting's PLD."""

import math
import warnings
from collections.abc import Sequence

import dp_accounting
import pytest
from dp_accounting import pld

from atoll.accounting.calibrating import least_noise
from atoll.server.errors import InvalidRequestError
from atoll.server.privacy.accounting import calibrate, epsilon, merged
from atoll.server.privacy.events import Event, Sampling

pytestmark = pytest.mark.slow

THEIR_MARGIN = 2e-4
"""By which dp-accounting's pessimistic estimates, on a grid of 1e-4, may be above the truth; see tests/accounting."""


def poisson(noise: float, rate: float, count: int) -> Event:
    return Event(noise, rate, count, Sampling.POISSON)


def by_pld(events: Sequence[Event], delta: float) -> float:
    """Epsilon by privacy loss distributions, in both directions of add/remove (dp-accounting)."""
    accountant = pld.PLDAccountant()
    for event in events:
        release: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(event.noise_multiplier)
        if event.sampling is Sampling.POISSON:
            release = dp_accounting.PoissonSampledDpEvent(event.sample_rate, release)
        accountant.compose(dp_accounting.SelfComposedDpEvent(release, event.count))
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize(
    ("event", "delta", "rdp", "prv", "truth"),
    [
        (poisson(1.0, 1.0, 1), 1e-5, 4.7285, 4.3874, 4.3772),
        (poisson(1.0, 0.01, 1000), 1e-5, 2.1014, 1.8384, 1.8282),
        (poisson(1.1, 256 / 60000, 14062), 1e-5, 2.5966, 2.3917, 2.3817),
        (poisson(1.0, 0.1, 100), 1e-6, 8.9148, 8.0690, 8.0586),
        (poisson(4.0, 1.0, 100), 1e-5, 14.1322, 13.2173, 13.2067),
    ],
)
def test_reference_values(event: Event, delta: float, rdp: float, prv: float, truth: float) -> None:
    assert epsilon([event], delta, "rdp") == pytest.approx(rdp, abs=1e-4)
    assert epsilon([event], delta, "prv") <= prv  # Opacus', with its error
    assert truth - 5e-5 <= epsilon([event], delta, "prv") <= truth + 0.005


GRID = [
    ([poisson(noise, rate, count)], delta, independent)
    for noise, rate, count, delta, independent in [
        (0.5, 0.01, 100, 1e-5, 6.47621),
        (0.5, 0.001, 1000, 1e-6, 4.235071),
        (0.6, 0.01, 50, 1e-7, 5.111461),
        (0.7, 0.05, 20, 1e-5, 4.649487),
        (0.8, 0.9, 5, 1e-5, 14.434286),
        (0.8, 0.002, 5000, 1e-6, 1.455752),
        (1.0, 0.5, 3, 1e-4, 4.908692),
        (1.0, 0.1, 30, 1e-8, 6.343351),
        (1.0, 0.01, 10, 1e-10, 1.764225),
        (1.0, 0.001, 10000, 1e-6, 0.555392),
        (1.0, 1.0, 1, 1e-9, 6.173935),
        (1.2, 0.02, 300, 1e-5, 1.525996),
        (1.3, 0.004, 14000, 1e-5, 1.693417),
        (1.5, 0.3, 40, 1e-6, 8.121132),
        (1.5, 0.05, 2000, 1e-7, 9.965454),
        (2.0, 0.999, 10, 1e-5, 7.504587),
        (2.0, 0.2, 200, 1e-5, 7.372283),
        (2.0, 0.01, 20000, 1e-6, 3.581059),
        (3.0, 0.1, 1000, 1e-6, 5.457564),
        (4.0, 1.0, 10, 1e-3, 2.351841),
        (5.0, 0.5, 100, 1e-8, 5.961293),
        (8.0, 1.0, 300, 1e-6, 12.108441),
        (10.0, 0.5, 500, 1e-5, 5.012278),
        (20.0, 0.1, 10, 1e-5, 0.046298),
        (30.0, 1.0, 1, 1e-2, 0.007304),
        (50.0, 0.01, 10, 1e-5, 0.00115),
    ]
]
GRID += [
    ([Event(2.0, count=7)], 1e-6, 6.740673),
    ([poisson(1.0, 0.01, 500), Event(2.0, count=3), poisson(0.8, 0.002, 2000)], 1e-6, 4.53813),
    ([poisson(1.0, 0.01, 100), poisson(1.0, 0.02, 100), poisson(1.0, 0.05, 100)], 1e-5, 3.728581),
    ([poisson(0.9 + step / 50, 0.01, 40) for step in range(8)], 1e-5, 1.228685),
    ([poisson(1.0, 0.01, 100), poisson(1.0, 0.01, 150), poisson(30.0, 0.5, 1)], 1e-7, 1.500748),
    ([Event(3.0 + step) for step in range(10)], 1e-5, 2.268165),
    ([Event(1.0), poisson(5.0, 0.001, 1)], 1e-5, 4.377178),
    ([poisson(2.0, 0.3, 17), poisson(0.7, 0.001, 300)], 1e-8, 4.424402),
]
"""Histories, delta, and epsilon by ``by_pld`` (dp-accounting 0.6), which takes up to some seconds for each."""


def test_never_below_an_independent_account_and_hardly_above() -> None:
    """The grid of the ledger's figure: histories of one kind and mixed ones."""
    assert len(GRID) >= 30
    for events, delta, independent in GRID:
        found = epsilon(events, delta, "prv")
        assert independent - THEIR_MARGIN <= found <= min(independent + 0.005, independent * 1.01 + 1e-6)


CHECKED = [*GRID[7:15:7], *(pytest.param(*GRID[index], marks=pytest.mark.every_case) for index in (0, 21, 28))]


@pytest.mark.parametrize(("events", "delta", "independent"), CHECKED)
def test_the_independent_account_is_as_kept(events: list[Event], delta: float, independent: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert by_pld(events, delta) == pytest.approx(independent, abs=1e-5)


@pytest.mark.parametrize(("events", "delta"), [history[:2] for history in GRID[::4]])
def test_renyi_is_an_upper_bound_too(events: list[Event], delta: float) -> None:
    assert epsilon(events, delta, "rdp") >= epsilon(events, delta, "prv")


def test_charges_without_sampling_add_up_in_any_order() -> None:
    events = [Event(2.0, count=3), poisson(1.0, 0.1, 2), Event(1.0), poisson(1.0, 0.1, 3), poisson(4.0, 1.0, 16)]
    once = (poisson(1.0, 0.1, 5), Event((3 / 4 + 1 + 1) ** -0.5))
    found = merged(reversed(events))
    assert set(merged(events)) == set(found)
    assert {(one.sampling, one.count) for one in found} == {(one.sampling, one.count) for one in once}
    assert min(one.noise_multiplier for one in found) == pytest.approx(once[1].noise_multiplier)


def test_nothing_costs_nothing_and_no_noise_everything() -> None:
    for accountant in ("prv", "rdp"):
        assert epsilon([], 1e-5, accountant) == 0
        assert epsilon([Event(math.inf), Event(1.0, count=0)], 1e-5, accountant) == 0
        assert epsilon([Event(0.0)], 1e-5, accountant) == math.inf
        assert epsilon([poisson(0.0, 0.01, 1), poisson(1.0, 0.01, 1)], 1e-5, accountant) == math.inf
        assert 0 <= epsilon([poisson(1e6, 1e-6, 1)], 1e-5, accountant) < 0.02


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_a_delta_that_is_none_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        epsilon([Event(1.0)], delta, "rdp")


def test_cost_grows_with_every_release_and_shrinks_with_noise() -> None:
    for accountant in ("prv", "rdp"):
        by_count = [epsilon([poisson(1.0, 0.01, count)], 1e-5, accountant) for count in (1, 2, 10, 100, 1000)]
        assert by_count == sorted(by_count)
        by_noise = [epsilon([poisson(noise, 0.01, 100)], 1e-5, accountant) for noise in (0.5, 1.0, 2.0, 4.0)]
        assert by_noise == sorted(by_noise, reverse=True)


def test_the_least_noise_for_a_target() -> None:
    """sigma for epsilon 8, delta 1e-6, q = .01, 1000 rounds: RDP .6451, PLD .6167."""
    releases = poisson(1.0, 0.01, 1000)
    assert calibrate(releases, 8.0, 1e-6, "rdp") == pytest.approx(0.6451, abs=1.5e-4)
    noise = calibrate(releases, 8.0, 1e-6, "prv")
    assert noise == pytest.approx(0.6167, abs=1.5e-4)
    assert 7.99 < epsilon([poisson(noise, 0.01, 1000)], 1e-6, "prv") <= 8


@pytest.mark.parametrize(("releases", "target"), [(Event(1.0), 0.05), (Event(1.0), 30.0), (poisson(1.0, 0.1, 20), 1.0)])
def test_calibration_meets_its_target_and_wastes_little(releases: Event, target: float) -> None:
    noise = calibrate(releases, target, 1e-5, "rdp")
    at = Event(noise, releases.sample_rate, releases.count, releases.sampling)
    assert target * 0.999 < epsilon([at], 1e-5, "rdp") <= target


@pytest.mark.parametrize("target", [math.nan, math.inf, 0.0, -1.0])
def test_calibration_has_a_target(target: float) -> None:
    with pytest.raises(InvalidRequestError, match=f"epsilon {target} is no target"):
        calibrate(Event(1.0), target, 1e-5, "rdp")
    with pytest.raises(ValueError, match=f"an epsilon of {target} to calibrate to"):
        least_noise(lambda _: 1.0, target)


def test_a_target_below_what_can_be_accounted_for_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="below what can be accounted for"):
        calibrate(Event(1.0), 1e-4, 1e-12, "rdp")
