"""Where Opacus' numerical account is wrong or fails, Renyi divergences answer; elsewhere it is tighter."""

import math
import sys

import dp_accounting
import pytest
from dp_accounting import pld
from opacus.accountants import PRVAccountant

from atoll.accounting import ACCOUNTANTS, Accountant, OpacusMissingError, Steps, answered_by, epsilon
from atoll.accounting.loading import opacus_accountants

TOO_FINE = (Steps(2.0, 0.02, 10_000), 1e-12)
TOO_SMALL = (Steps(1.0, 0.01, 1000), 1e-14)
TOO_FAR = (Steps(0.3, 0.5, 500), 1e-5)


def by_opacus(steps: Steps, delta: float) -> float:
    accountant = PRVAccountant()
    accountant.history = [(steps.noise_multiplier, steps.sample_rate, steps.count)]
    return float(accountant.get_epsilon(delta))


def by_pld(steps: Steps, delta: float) -> float:
    """By privacy loss distributions, in both directions of add/remove (dp-accounting)."""
    accountant = pld.PLDAccountant()
    release = dp_accounting.PoissonSampledDpEvent(
        steps.sample_rate, dp_accounting.GaussianDpEvent(steps.noise_multiplier)
    )
    accountant.compose(dp_accounting.SelfComposedDpEvent(release, steps.count))
    return float(accountant.get_epsilon(delta))


def test_opacus_alone_would_have_been_below_the_truth_or_failed() -> None:
    assert by_opacus(*TOO_FINE) < by_pld(*TOO_FINE) - 0.02
    with pytest.raises(ValueError, match="Floating point errors will dominate"):
        by_opacus(*TOO_SMALL)
    assert by_opacus(*TOO_FAR) == math.inf


@pytest.mark.parametrize(("steps", "delta"), [TOO_FINE, TOO_SMALL, TOO_FAR])
def test_where_float64_cannot_tell_renyi_answers(steps: Steps, delta: float) -> None:
    found = epsilon([steps], delta, "prv")
    assert found == epsilon([steps], delta, "rdp")
    assert answered_by([steps], delta, "prv") == "rdp"
    assert math.isfinite(found)


def test_elsewhere_the_numerical_account_is_tighter() -> None:
    steps = Steps(1.0, 0.01, 1000)
    assert (answered_by([steps], 1e-5, "prv"), answered_by([steps], 1e-5, "rdp")) == ("prv", "rdp")
    assert answered_by([Steps(0.0)], 1e-5, "prv") == answered_by([], 1e-5, "prv") == "prv"
    assert by_pld(steps, 1e-5) < epsilon([steps], 1e-5, "prv") < epsilon([steps], 1e-5, "rdp") - 0.2


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_nothing_costs_nothing_and_no_noise_everything(accountant: Accountant) -> None:
    assert epsilon([Steps(math.inf), Steps(1.0, count=0)], 1e-5, accountant) == 0
    assert epsilon([Steps(1.0), Steps(0.0, 0.5)], 1e-5, accountant) == math.inf


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_a_delta_that_is_none_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        epsilon([Steps(1.0)], delta, "rdp")


def test_the_central_limit_account_is_not_offered() -> None:
    with pytest.raises(ValueError, match="must be one of prv, rdp"):
        epsilon([Steps(1.0)], 1e-5, "gdp")  # type: ignore[arg-type]  # the point of the test


def test_without_opacus_there_is_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    opacus_accountants.cache_clear()
    with pytest.raises(OpacusMissingError, match="Opacus"):
        epsilon([Steps(1.013, 0.01)], 1e-5, "rdp")
