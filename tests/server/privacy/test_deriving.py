"""A contract follows from the server's actual sampler, weighting, clipping and mechanism."""

import json
import math

import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.privacy.accounting import epsilon
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.deriving import contract_of, noise_beside_count
from atoll.server.privacy.events import Adjacency, Event, Sampling
from atoll.server.privacy.mechanisms.optimising import best_strategy
from atoll.server.privacy.mechanisms.sensitivity import banded_squares, blt_squares, tree_squares
from atoll.server.privacy.run import PrivateRun
from tests.server.privacy.jobs import NOISE, TARGET, job

CLIP = f"{NOISE}\nclip = 0.5"
UNIFORM = '[aggregation]\nweighting = "uniform"'
CAPPED = f"{CLIP}\nmax_participations = 5"


def contract(cohort: str = "poisson", privacy: str = CLIP, rest: str = UNIFORM) -> Contract:
    found = contract_of(job(cohort, privacy, rest))
    assert found is not None
    return found


def test_a_job_without_the_section_has_none() -> None:
    plain = job()
    assert contract_of(plain.model_copy(update={"privacy": None})) is None


def test_poisson_sampling_is_amplified_and_divides_by_a_fixed_number() -> None:
    found = contract()
    assert (found.adjacency, found.sampling, found.sample_rate) == (Adjacency.ADD_REMOVE, Sampling.POISSON, 0.01)
    assert (found.accountant, found.divisor_weight, found.weight_bound) == ("prv", 100, 1)
    assert found.cost(0) == found.cost(999) == Event(1.0, 0.01, 1, Sampling.POISSON)
    assert found.costs(1000) == (Event(1.0, 0.01, 1000, Sampling.POISSON),)


@pytest.mark.parametrize("cohort", ["uniform", "availability"])
def test_only_an_independent_draw_amplifies(cohort: str) -> None:
    """If a fixed number is drawn, colluding members know how many places are left; see docs/decisions/0018."""
    found = contract(cohort, CAPPED)
    assert (found.adjacency, found.sampling, found.sample_rate) == (Adjacency.ADD_REMOVE, Sampling.NONE, 1.0)
    assert found.accountant == "prv"


def test_weights_raise_the_sensitivity() -> None:
    """One participant with many examples moves the sum by max_weight times the clip, and the noise grows with that."""
    found = contract(rest="[aggregation]\nmax_weight = 1000")
    assert (found.weight_bound, found.divisor_weight) == (1000, 100_000)
    assert found.cost(0) == contract().cost(0)


def test_without_a_random_draw_each_participation_costs_in_full() -> None:
    found = contract("availability", f"{CAPPED}\nmechanism = 'gaussian'")
    assert [found.cost(version) for version in range(6)] == [Event(1.0)] * 5 + [None]
    assert found.cost(999) is None
    assert found.epsilon_after(1000) == found.epsilon_after(5) == epsilon([Event(1.0, count=5)], 1e-6, "prv")


@pytest.mark.parametrize(
    ("mechanism", "cohort"),
    [
        ("gaussian", "availability"),
        *(
            (correlated, sampler)
            for correlated in ("tree", "banded", "blt")
            for sampler in ("least_recent", "poisson", "uniform")
        ),
    ],
)
def test_charges_of_correlated_noise_add_up_to_the_sensitivity_of_the_whole(mechanism: str, cohort: str) -> None:
    found = contract(cohort, f'{CAPPED}\nmechanism = "{mechanism}"\nmin_separation = 20')
    whole = {
        "gaussian": 5.0,
        "tree": tree_squares(1000, 20, 5)[-1],
        "banded": banded_squares(20, 1000, 20, 5)[-1],
        "blt": blt_squares(best_strategy(1000, 20, 5), 1000, 20, 5)[-1],
    }[mechanism]
    charged = [event for version in range(1000) if (event := found.cost(version)) is not None]
    assert sum(event.noise_multiplier**-2 for event in charged) == pytest.approx(whole)
    assert {event.sampling for event in charged} == {Sampling.NONE}
    assert found.costs(1000)[0].noise_multiplier == pytest.approx(1 / math.sqrt(whole))
    assert found.adjacency is Adjacency.ADD_REMOVE


@pytest.mark.parametrize(
    ("cohort", "keys", "rest", "mechanism"),
    [
        ("availability", "clip = 0.5\nmax_participations = 5", UNIFORM, "blt"),
        ("uniform", "clip = 0.5\nmax_participations = 5\nmin_separation = 20", UNIFORM, "blt"),
        ("availability", "clip = 0.5\nmax_participations = 5\nmechanism = 'gaussian'", UNIFORM, "gaussian"),
        ("availability", "adaptive = { initial = 1.0 }\nmax_participations = 5", UNIFORM, "gaussian"),
        ("availability", "clip = 0.5\nmax_participations = 5", f"{UNIFORM}\nfragments = 2", "gaussian"),
        ("poisson", "clip = 0.5", UNIFORM, "gaussian"),
    ],
)
def test_capped_participation_gets_blt_noise_wherever_it_can(cohort: str, keys: str, rest: str, mechanism: str) -> None:
    found = contract(cohort, f"{NOISE}\n{keys}", rest)
    assert found.mechanism == mechanism
    assert (found.strategy is not None) == (mechanism == "blt")


def test_the_strategy_is_stored_with_the_contract_and_never_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = contract("availability", CAPPED)
    run = PrivateRun.begin(found, 8.0)
    monkeypatch.setattr("atoll.server.privacy.mechanisms.optimising.best_strategy", None)
    monkeypatch.setattr("atoll.server.privacy.deriving.best_strategy", None)
    assert PrivateRun.from_text(run.to_text()).contract == found
    assert found.strategy == best_strategy(1000, 1, 5)


def test_bands_default_to_the_separation_within_reason() -> None:
    banded = CAPPED + '\nmechanism = "banded"\nmin_separation = '
    assert contract("availability", banded + "7").bands == 7
    assert contract("availability", banded + "70").bands == 32
    assert contract("availability", banded + "70\nbands = 64").bands == 64


def test_the_quantile_is_paid_by_noise_on_the_updates() -> None:
    """Andrew et al. 2021, section 3.1: 1.00504 at z = 1 and n = 100; the release costs what z says."""
    found = contract(privacy=f"{NOISE}\nadaptive = {{ initial = 0.3 }}")
    assert found.count_noise == 5.0
    assert found.noise_multiplier == pytest.approx(1.00504, abs=5e-6)
    event = found.cost(0)
    assert event is not None
    assert event.noise_multiplier == pytest.approx(1.0)
    assert found.clip == 0.3


@pytest.mark.parametrize("clip", ["clip = 0.5", "adaptive = { initial = 0.3 }"])
def test_the_number_of_reports_is_paid_by_noise_on_the_updates(clip: str) -> None:
    found = contract(privacy=f"{NOISE}\n{clip}\nreport_noise = 10")
    without = contract(privacy=f"{NOISE}\n{clip}")
    assert 1.004 < found.noise_multiplier / without.noise_multiplier < 1.006
    event = found.cost(0)
    assert event is not None
    assert event.noise_multiplier == pytest.approx(1.0)


def test_a_number_of_reports_that_costs_more_than_all_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="that number alone would cost more") as caught:
        contract(privacy=f"{CLIP}\nreport_noise = 0.9")
    assert caught.value.detail.remedy.startswith("set privacy.report_noise above 1; 10 costs")


def test_a_count_that_costs_more_than_all_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="the count alone would cost more") as caught:
        noise_beside_count(10.0, 5.0)
    assert caught.value.detail.remedy.startswith("set privacy.adaptive.count_noise above 5")


@pytest.mark.parametrize(
    ("cohort", "keys"),
    [
        ("poisson", ""),
        ("uniform", "max_participations = 5"),
        ("availability", "max_participations = 5"),
        ("availability", 'max_participations = 5\nmin_separation = 20\nmechanism = "tree"'),
        ("availability", 'max_participations = 5\nmin_separation = 20\nmechanism = "banded"'),
        ("availability", 'max_participations = 5\nmin_separation = 20\nmechanism = "blt"'),
    ],
)
def test_a_target_gets_the_least_noise_that_meets_it(cohort: str, keys: str) -> None:
    found = contract(cohort, f"{TARGET}\nclip = 1.0\naccountant = 'rdp'\n{keys}")
    assert 7.99 < found.epsilon_after(1000) <= 8.0
    assert found.epsilon_after(500) <= found.epsilon_after(1000)


def test_before_the_first_release_nothing_is_spent() -> None:
    assert contract().costs(0) == ()
    assert contract().epsilon_after(0) == 0


def test_nothing_is_promised_beyond_the_plan() -> None:
    with pytest.raises(ValueError, match="for 1000 rounds"):
        contract().cost(1000)


@pytest.mark.parametrize("privacy", [CLIP, f"{NOISE}\nadaptive = {{ initial = 0.3 }}"])
def test_a_contract_survives_its_json(privacy: str) -> None:
    found = contract(privacy=privacy)
    assert Contract.from_json(json.loads(json.dumps(found.as_json()))) == found
