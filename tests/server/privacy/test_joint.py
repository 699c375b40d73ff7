"""Charges of runs with noised counts, compared with dp-accounting's account of all releases of a round."""

import dataclasses
import warnings
from functools import cache

import pytest

from atoll.server.jobs import JobSpec
from atoll.server.privacy import ledger
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.deriving import contract_of
from atoll.server.privacy.events import Event
from atoll.server.privacy.planning import plan_of
from atoll.server.privacy.tally import parsed_cost
from tests.server.privacy.jobs import job
from tests.server.privacy.joint import by_divergences, by_losses, release_of

MOST_ABOVE, MOST_SHARE = 0.02, 1.05
THEIR_ERROR = 1e-4
"""Relative error of ``by_losses``, from its cells and its grid, in either direction."""

GRID = [
    ("poisson 100 0.01", 1000, "noise_multiplier = 1.0; delta = 1e-6; count = 5", 2.12447),
    ("poisson 100 0.01", 1000, "noise_multiplier = 1.0; delta = 1e-6; report_noise = 10", 2.12447),
    ("poisson 100 0.01", 1000, "noise_multiplier = 1.0; delta = 1e-6; count = 5; report_noise = 10", 2.12447),
    ("poisson 50 0.001", 300, "noise_multiplier = 0.6; delta = 1e-6; count = 0.5", 1.71776),
    ("poisson 50 0.001", 300, "noise_multiplier = 0.6; delta = 1e-6; report_noise = 0.7", 1.71775),
    ("poisson 20 0.1", 30, "noise_multiplier = 0.8; delta = 1e-5; count = 1; report_noise = 2", 6.57868),
    ("poisson 20 0.5", 20, "noise_multiplier = 2.0; delta = 1e-5; count = 2; report_noise = 4", 5.68943),
    ("poisson 40 0.2", 200, "noise_multiplier = 4.0; delta = 1e-8; count = 5", 4.15124),
    ("poisson 10 0.02", 10, "noise_multiplier = 0.5; delta = 1e-4; count = 0.3", 4.29336),
    ("poisson 10 0.02", 10, "noise_multiplier = 0.5; delta = 1e-4; report_noise = 0.6", 4.29336),
    ("poisson 200 0.05", 400, "epsilon = 3.0; delta = 1e-6; count = 10", 2.99921),
    ("poisson 200 0.05", 400, "epsilon = 3.0; delta = 1e-6; report_noise = 6", 2.99921),
    ("poisson 200 0.05", 100, "epsilon = 1.0; delta = 1e-9; count = 30; report_noise = 60", 0.999771),
    ("poisson 30 0.9", 3, "noise_multiplier = 1.5; delta = 1e-3; count = 1; report_noise = 3", 3.45764),
    ("poisson 30 1.0", 20, "noise_multiplier = 3.0; delta = 1e-5; count = 3; report_noise = 8", 6.99923),
    ("uniform 100", 100, "noise_multiplier = 4.0; delta = 1e-6; count = 5; max_participations = 5", 2.5487),
    ("uniform 10", 10, "noise_multiplier = 1.0; delta = 1e-5; count = 0.6; max_participations = 1", 4.37718),
    ("uniform 500", 400, "noise_multiplier = 10.0; delta = 1e-8; count = 6; max_participations = 40", 3.49126),
    ("availability 60", 200, "epsilon = 2.0; delta = 1e-5; count = 6; max_participations = 10", 1.99991),
    ("availability 60", 30, "epsilon = 8.0; delta = 1e-5; count = 1; max_participations = 3", 7.99999),
]
"""Sampler, cohort and rate; rounds; the job's privacy section, ``count`` being adaptive clipping's noise; epsilon by
``by_losses``. Made with dp-accounting 0.6.0, which takes up to 20 s for one."""
CHECKED = (7, 16)
CHEAP = (0, 11, 15, *range(17, 20))
AGAIN = [
    *(GRID[index] for index in CHECKED),
    *(pytest.param(*GRID[index], marks=pytest.mark.every_case) for index in CHEAP),
]
FEW = [*GRID[::4], *(pytest.param(*one, marks=pytest.mark.every_case) for one in GRID if one not in GRID[::4])]


def spec_of(cohort: str, rounds: int, keys: str) -> JobSpec:
    sampler, size, *rate = cohort.split()
    of_rate = f"\nrate = {rate[0]}" if rate else ""
    lines = ["mechanism = 'gaussian'", *([] if "count" in keys else ["clip = 1.0"])]
    for key in keys.split("; "):
        name, _, value = key.partition(" = ")
        lines.append(f"adaptive = {{ initial = 1.0, count_noise = {value} }}" if name == "count" else key)
    return job(f'size = {size}\nsampler = "{sampler}"{of_rate}', "\n".join(lines), rounds=rounds)


@cache
def contract(cohort: str, rounds: int, keys: str) -> Contract:
    found = contract_of(spec_of(cohort, rounds, keys))
    assert found is not None
    return found


def charged_event(promised: Contract, version: int) -> Event | None:
    """The event that the ledger reads from a round's charge."""
    charge = ledger.charge_of(promised, run_id="r", round_number=version, attempt=0, version=version, now=0.0)
    return parsed_cost(charge).event


@pytest.mark.parametrize(("cohort", "rounds", "keys", "independent"), GRID)
def test_charges_are_never_below_the_joint_account_and_hardly_above(
    cohort: str, rounds: int, keys: str, independent: float
) -> None:
    promised = contract(cohort, rounds, keys)
    events = [event for version in range(rounds) if (event := charged_event(promised, version)) is not None]
    charged = ledger.epsilon_of(events, promised.delta, "prv")
    assert charged == pytest.approx(promised.epsilon_after(rounds), rel=1e-6)  # what ``atoll privacy plan`` shows
    assert independent * (1 - THEIR_ERROR) <= charged <= min(independent + MOST_ABOVE, independent * MOST_SHARE)
    assert promised.epsilon is None or charged <= promised.epsilon


@pytest.mark.parametrize(("cohort", "rounds", "keys", "independent"), FEW)
def test_divergences_are_those_of_the_joint_release(cohort: str, rounds: int, keys: str, independent: float) -> None:
    promised = contract(cohort, rounds, keys)
    found = ledger.epsilon_of(promised.costs(rounds), promised.delta, "rdp")
    assert independent <= found <= by_divergences(release_of(promised), promised.delta) * 1.001


@pytest.mark.parametrize(("cohort", "rounds", "keys", "independent"), AGAIN)
def test_the_joint_account_is_as_kept(cohort: str, rounds: int, keys: str, independent: float) -> None:
    promised = contract(cohort, rounds, keys)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert by_losses(release_of(promised), promised.delta) == pytest.approx(independent, rel=1e-5)


def test_an_uncharged_count_shows_in_the_independent_account() -> None:
    """The independent account separates a run whose noise on the updates pays for its counts from one that does not."""
    cohort, rounds, keys, _ = GRID[7]
    promised = contract(cohort, rounds, keys)
    unpaid = dataclasses.replace(promised, noise_multiplier=4.0)
    assert by_losses(release_of(unpaid), promised.delta) > promised.epsilon_after(rounds) * 1.05


def test_a_plan_shows_the_account_with_its_counts() -> None:
    cohort, rounds, keys, independent = GRID[9]
    promised = contract(cohort, rounds, keys)
    found = plan_of(spec_of(cohort, rounds, keys), 1000)
    assert found.contract == promised
    assert independent * (1 - THEIR_ERROR) <= found.spent[-1].epsilon <= independent * MOST_SHARE
