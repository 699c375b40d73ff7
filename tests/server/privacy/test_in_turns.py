"""The spending of participants that take turns, compared with the job's draw."""

from __future__ import annotations

import pytest

from atoll.server.jobs import JobSpec
from atoll.server.privacy.deriving import contract_of
from atoll.server.privacy.in_turns import InTurns, taking_turns
from atoll.server.privacy.planning import plan_of
from atoll.server.privacy.signal_to_noise import noise_of_run
from tests.server.privacy.jobs import job

NOISE = "noise_multiplier = 4.0\ndelta = 1e-5\nclip = 0.5"
EVERY_ROUND = f'{NOISE}\nmax_participations = 30\nmechanism = "gaussian"'


def turns_of(spec: JobSpec, participants: int | None = None) -> InTurns | None:
    contract = contract_of(spec)
    assert contract is not None
    return taking_turns(spec, contract, participants)


def test_a_cap_that_takes_turns_halves_what_four_hospitals_spend() -> None:
    spec = job('size = 1\nsampler = "uniform"\nmin_available = 4', EVERY_ROUND, rounds=30)
    found, contract = turns_of(spec), contract_of(spec)
    assert found is not None
    assert contract is not None
    assert (found.sampler, found.max_participations, found.min_separation) == ("least_recent", 8, 4)
    assert found.epsilon < 0.5 * contract.epsilon_after(30)


def test_what_is_suggested_is_a_job_with_the_same_noise_and_that_epsilon() -> None:
    spec = job('size = 1\nsampler = "uniform"\nmin_available = 4', EVERY_ROUND, rounds=30)
    found, contract = turns_of(spec), contract_of(spec)
    assert found is not None
    assert contract is not None
    keys = (
        f"noise_multiplier = {found.noise_multiplier}\ndelta = 1e-5\nclip = 0.5\n"
        f'mechanism = "{found.mechanism}"\nmax_participations = {found.max_participations}\n'
        f"min_separation = {found.min_separation}"
    )
    suggested = contract_of(job(f'size = 1\nsampler = "{found.sampler}"', keys, rounds=30))
    assert suggested is not None
    assert suggested.epsilon_after(30) == pytest.approx(found.epsilon, rel=1e-9)
    assert noise_of_run(suggested) == pytest.approx(noise_of_run(contract), rel=1e-9)


def test_a_secret_draw_that_spends_less_is_left_alone() -> None:
    assert turns_of(job('size = 1\nsampler = "poisson"\nrate = 0.25', NOISE, rounds=30)) is None


def test_a_secret_draw_that_spends_as_much_is_not_worth_its_waiting() -> None:
    found = turns_of(job('size = 2\nsampler = "poisson"\nrate = 0.5', NOISE, rounds=30))
    assert found is not None
    assert found.mechanism == "blt"


def test_without_a_number_of_participants_nothing_is_suggested() -> None:
    spec = job('size = 2\nsampler = "uniform"', EVERY_ROUND, rounds=30)
    assert turns_of(spec) is None
    assert turns_of(spec, 8) is not None
    assert turns_of(spec, 1) is None


def test_a_norm_that_adapts_keeps_independent_noise() -> None:
    keys = (
        "noise_multiplier = 1.0\ndelta = 1e-5\nadaptive = { initial = 0.5, count_noise = 5.0 }\nmax_participations = 30"
    )
    found = turns_of(job('size = 1\nsampler = "uniform"\nmin_available = 4', keys, rounds=30))
    assert found is not None
    assert found.mechanism == "gaussian"


def test_a_plan_says_when_rows_are_the_better_unit() -> None:
    few = job('size = 1\nsampler = "uniform"\nmin_available = 4', EVERY_ROUND, rounds=30)
    assert plan_of(few, 62).sample_level
    many = job("poisson", f"{NOISE}\naccountant = 'rdp'")
    assert not plan_of(many, 62).sample_level
