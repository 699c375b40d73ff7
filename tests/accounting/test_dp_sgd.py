"""Plans of DP-SGD, beside dp-accounting's and Opacus' accounts of the same steps."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent

from atoll.accounting import DpSgdTraining, Steps, plan_dp_sgd
from atoll.accounting.dp_sgd import MAX_STEPS, _rounded_up
from atoll.client._privacy.ledger import Limit
from atoll.client._privacy.sample_ledger import dp_sgd_release, sample_ledger
from atoll.client.errors import BudgetSpentError
from atoll.client.task import RoundKey
from tests.accounting.test_composing import by_pld

HOSPITAL = DpSgdTraining.of_epochs(106, 32, 20, participants=4, elements=62)
CASES = [
    (HOSPITAL, 1e-4, 0.5),
    (HOSPITAL, 1e-4, 8.0),
    (DpSgdTraining(1000, 50, 30, 20), 1e-5, 2.0),
    (DpSgdTraining(60_000, 256, 10, 234), 1e-6, 3.0),
    (DpSgdTraining(50, 50, 5, 2), 1e-3, 4.0),
]
CLOSE = 1e-3
"""How far above dp-accounting's pessimistic estimate a plan may be; its own error is up to 1.4e-4 (accounting.md)."""


@pytest.mark.parametrize(("training", "delta", "target"), CASES)
def test_a_plan_agrees_with_an_independent_account_and_is_never_below_it(
    training: DpSgdTraining, delta: float, target: float
) -> None:
    plan = plan_dp_sgd(training, delta=delta, epsilon=target)
    truth = by_pld(Steps(plan.noise_multiplier, training.sample_rate, training.steps), delta)
    assert truth - 2e-4 <= plan.epsilon_fixed <= truth + CLOSE * max(1.0, truth)
    assert plan.epsilon_fixed <= plan.epsilon <= target
    assert plan.epsilon > 0.99 * target  # a ledger that keeps half of delta counts more, and the target is about met


@pytest.mark.parametrize(("training", "delta", "target"), CASES)
def test_a_plan_by_renyi_orders_is_above_opacus_best_order(
    training: DpSgdTraining, delta: float, target: float
) -> None:
    """The ledger's filter fixes ten orders beforehand, Opacus takes the best of all afterwards."""
    plan = plan_dp_sgd(training, delta=delta, epsilon=target, accountant="rdp")
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(11, 256))
    divergences = compute_rdp(
        q=training.sample_rate, noise_multiplier=plan.noise_multiplier, steps=training.steps, orders=orders
    )
    best, _ = get_privacy_spent(orders=orders, rdp=divergences, delta=delta)
    assert best - 1e-6 <= plan.epsilon <= target
    assert plan.noise_multiplier >= plan_dp_sgd(training, delta=delta, epsilon=target).noise_multiplier


def test_the_participants_ledger_takes_all_planned_rounds_and_no_more(tmp_path: Path) -> None:
    plan = plan_dp_sgd(HOSPITAL, delta=1e-4, epsilon=3.0)
    ledger = sample_ledger(tmp_path / "samples.json", Limit(3.0, 1e-4), "prv")
    release = dp_sgd_release(plan.noise_multiplier, HOSPITAL.sample_rate, HOSPITAL.steps_per_round)
    for number in range(HOSPITAL.rounds):
        ledger.charge(RoundKey("r", number, 0), "study", release)
    assert ledger.account().epsilon == pytest.approx(plan.epsilon, abs=1e-9)
    with pytest.raises(BudgetSpentError):
        ledger.charge(RoundKey("r", HOSPITAL.rounds, 0), "study", release)


def test_given_noise_is_accounted_as_it_is() -> None:
    plan = plan_dp_sgd(HOSPITAL, delta=1e-4, noise_multiplier=3.4)
    assert plan.noise_multiplier == 3.4
    assert plan.epsilon_fixed == pytest.approx(by_pld(Steps(3.4, 32 / 106, 80), 1e-4), abs=CLOSE)


def test_ratios_grow_with_the_root_of_what_is_averaged() -> None:
    plan = plan_dp_sgd(HOSPITAL, delta=1e-4, noise_multiplier=2.0)
    step = 32 / (2.0 * math.sqrt(62))
    found = (plan.of_step, plan.of_update, plan.of_round, plan.of_run)
    assert found == pytest.approx((step, step * 2, step * 4, step * 4 * math.sqrt(20)))
    unknown = plan_dp_sgd(DpSgdTraining(106, 32, 20, 4), delta=1e-4, noise_multiplier=2.0)
    assert (unknown.of_step, unknown.of_update, unknown.of_round, unknown.of_run) == (None,) * 4


def test_a_batch_of_all_rows_is_no_draw() -> None:
    assert DpSgdTraining.of_epochs(20, 20, 3, epochs=2) == DpSgdTraining(20, 20, 3, 2)
    assert DpSgdTraining(20, 20, 3, 2).sample_rate == 1.0


def test_a_batch_of_more_than_all_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="batch = 320 is more than the 144 rows"):
        DpSgdTraining.of_epochs(144, 320, 20)


@pytest.mark.filterwarnings("error")
def test_a_delta_below_what_floats_add_up_to_is_planned_without_a_warning() -> None:
    assert plan_dp_sgd(DpSgdTraining(144, 16, 20, 9), delta=1e-300, noise_multiplier=100.0).epsilon > 0


def test_noise_is_rounded_up_to_digits_that_people_copy() -> None:
    draw = random.Random(5)
    for _ in range(2000):
        noise = 10 ** draw.uniform(-4, 6)
        assert noise * (1 - 1e-12) <= _rounded_up(noise) <= noise * 1.0011
    assert _rounded_up(0.61671) == 0.6168


@pytest.mark.parametrize("name", ["rows", "batch", "rounds", "steps_per_round", "participants", "elements"])
def test_a_number_below_one_is_refused_by_name(name: str) -> None:
    numbers = {"rows": 10, "batch": 5, "rounds": 2, "steps_per_round": 1, "participants": 1, "elements": 1} | {name: 0}
    with pytest.raises(ValueError, match=f"{name} = 0; must be 1 or more"):
        DpSgdTraining(**numbers)


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 10000000 can be planned"):
        DpSgdTraining(10, 5, MAX_STEPS, 2)
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"delta": 0.0, "epsilon": 1.0}, "must be above 0 and below 1"),
        ({"delta": 0.1, "epsilon": 1.0}, "publishing a row at random would meet it; must be below 0.00943"),
        ({"delta": 1e-4}, "exactly one of epsilon and noise_multiplier"),
        ({"delta": 1e-4, "epsilon": 1.0, "noise_multiplier": 1.0}, "exactly one of"),
        ({"delta": 1e-4, "noise_multiplier": math.nan}, "must be a finite number above 0"),
        ({"delta": 1e-4, "epsilon": -1.0}, "must be a finite number above 0"),
    )
    for promise, words in refused:
        with pytest.raises(ValueError, match=words):
            plan_dp_sgd(HOSPITAL, **promise)
    with pytest.raises(ValueError, match="must be one of"):
        plan_dp_sgd(HOSPITAL, delta=1e-4, epsilon=1.0, accountant="gdp")  # type: ignore[arg-type]
