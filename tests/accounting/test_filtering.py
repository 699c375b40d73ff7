"""One filter from the first release: half of delta for each of two cases, and an order that the limit fixes."""

from __future__ import annotations

import math

import pytest

from atoll.accounting import Steps, epsilon, filtered

DELTA = 1e-6
FIRST = Steps(1.0, 0.01, 500)


@pytest.mark.parametrize(
    "paid", [[FIRST], [Steps(3.0), Steps(4.0, count=7)], [Steps(1.0, 0.01, 3), Steps(1.0, 0.01, 9)]]
)
def test_one_kind_is_added_up_exactly_at_half_of_delta(paid: list[Steps]) -> None:
    assert filtered(paid[0], paid, 8.0, DELTA) == (epsilon(paid, DELTA / 2, "prv"), "prv")


def test_several_kinds_are_added_up_at_one_order() -> None:
    """At a fixed order Renyi divergences add up: so does epsilon, but for a constant."""
    kinds = [FIRST, Steps(0.8, 0.02, 10), Steps(5.0, 0.2, 40), Steps(10.0)]
    alone = [filtered(FIRST, [FIRST, more], 8.0, DELTA)[0] for more in kinds[1:]]
    base = filtered(FIRST, [FIRST, Steps(1e9)], 8.0, DELTA)[0]
    together, accountant = filtered(FIRST, kinds, 8.0, DELTA)
    assert accountant == "rdp"
    assert together - base == pytest.approx(sum(one - base for one in alone), rel=1e-9)


def test_the_order_is_the_best_for_the_first_kind_and_never_better_than_an_account_of_fixed_releases() -> None:
    other = Steps(1.0, 0.0100001, 1)
    for count in (100, 1000, 4000):
        paid = [Steps(1.0, 0.01, count), other]
        by_all_orders = epsilon(paid, DELTA / 2, "rdp")
        assert by_all_orders <= filtered(FIRST, paid, 8.0, DELTA)[0]
        assert filtered(FIRST, paid, by_all_orders, DELTA)[0] <= by_all_orders * 1.01
        assert filtered(FIRST, paid, None, DELTA)[0] == pytest.approx(by_all_orders)


def test_a_kind_more_never_costs_less() -> None:
    one = filtered(FIRST, [FIRST], 4.0, DELTA)[0]
    assert one < filtered(FIRST, [FIRST, Steps(30.0, 0.001, 1)], 4.0, DELTA)[0]


def test_nothing_costs_nothing_and_no_noise_everything() -> None:
    assert filtered(FIRST, [], 8.0, DELTA)[0] == filtered(FIRST, [Steps(math.inf)], 8.0, DELTA)[0] == 0
    assert filtered(FIRST, [FIRST, Steps(0.0)], 8.0, DELTA)[0] == math.inf


def test_an_infinite_limit_is_none() -> None:
    paid = [FIRST, Steps(5.0, 0.2, 40)]
    assert filtered(FIRST, paid, math.inf, DELTA) == filtered(FIRST, paid, None, DELTA)
