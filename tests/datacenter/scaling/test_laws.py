"""Published laws, compared with results in their papers."""

from __future__ import annotations

import pytest

from atoll.datacenter.scaling import LAWS, KaplanLaw, Law, ParametricLaw, ScalingError
from atoll.datacenter.scaling.laws import PF_DAY


@pytest.mark.parametrize("name", ["chinchilla", "besiroglu"])
@pytest.mark.parametrize("flops", [1e18, 1e21, 5.76e23])
def test_no_other_size_does_better_for_the_budget(name: str, flops: float) -> None:
    law = LAWS[name]
    best = law.optimum(flops)
    assert 6 * best.parameters * best.tokens == pytest.approx(flops)
    for factor in (0.8, 0.99, 1.01, 1.25):
        assert law.loss(best.parameters * factor, best.tokens / factor) > best.loss


def test_chinchillas_third_approach_gives_the_size_in_its_table() -> None:
    """Hoffmann et al. 2022, table A3: approach 3 asks for 40 billion parameters at Gopher's budget of 5.76e23."""
    assert LAWS["chinchilla"].optimum(5.76e23).parameters == pytest.approx(40e9, rel=0.2)


def test_the_corrected_constants_agree_with_twenty_tokens_a_parameter() -> None:
    """Besiroglu et al. 2024, about 20 tokens a parameter at Chinchilla's budget; the printed constants give 70."""
    assert 15 < LAWS["besiroglu"].optimum(5.76e23).tokens_per_parameter < 26
    assert 50 < LAWS["chinchilla"].optimum(5.76e23).tokens_per_parameter < 110


def test_chinchilla_itself_is_predicted() -> None:
    """Hoffmann et al. 2022, figure 4: about 1.94 nats for 70 billion parameters and 1.4e12 tokens."""
    assert LAWS["chinchilla"].loss(70e9, 1.4e12) == pytest.approx(1.94, abs=0.02)


def test_kaplans_best_size_at_a_petaflop_day() -> None:
    best = KaplanLaw().optimum(PF_DAY)
    assert best.parameters == pytest.approx(1.3e9)
    assert KaplanLaw().optimum(10 * PF_DAY).parameters == pytest.approx(1.3e9 * 10**0.73)
    assert best.tokens_per_parameter < 20


def test_kaplans_loss_without_bounds_on_data_or_size_is_its_power_law() -> None:
    """Kaplan et al. 2020, equations 1.1 and 1.2 with the constants of table 2."""
    law = KaplanLaw()
    assert law.loss(1e9, 1e40) == pytest.approx((6.4e13 / 1e9) ** 0.076)
    assert law.loss(1e60, 1e9) == pytest.approx((1.8e13 / 1e9) ** 0.103, rel=1e-3)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("flops", [0.0, -1.0, float("inf"), float("nan")])
def test_a_budget_that_is_none_is_refused(law: Law, flops: float) -> None:
    with pytest.raises(ScalingError, match="a budget of"):
        law.optimum(flops)


def test_equal_exponents_split_a_budget_evenly() -> None:
    law = ParametricLaw(1.0, 100.0, 100.0, 0.5, 0.5, "made up")
    best = law.optimum(6e18)
    assert best.parameters == pytest.approx(1e9)
    assert best.tokens == pytest.approx(1e9)
