"""One filter from the first release: a union of simple filters, each with its own share of delta."""

from __future__ import annotations

import math

import numpy as np
import pytest

from atoll.accounting import Steps, epsilon, filtered
from atoll.accounting.filtering import FILTER_ORDERS
from atoll.accounting.renyi import ORDERS, divergences

DELTA = 1e-6
FIRST = Steps(1.0, 0.01, 500)
KINDS = [FIRST, Steps(0.8, 0.02, 10), Steps(5.0, 0.2, 40), Steps(10.0)]


def at_order(paid: list[Steps], order: float, delta: float) -> float:
    """Balle et al. 2020, theorem 21."""
    (at,) = np.flatnonzero(order == ORDERS)
    spent = sum(one.count * float(divergences(one.noise_multiplier, one.sample_rate)[at]) for one in paid)
    return spent + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


@pytest.mark.parametrize(
    "paid", [[FIRST], [Steps(3.0), Steps(4.0, count=7)], [Steps(1.0, 0.01, 3), Steps(1.0, 0.01, 9)]]
)
def test_one_kind_is_added_up_exactly_at_half_of_delta(paid: list[Steps]) -> None:
    assert filtered(paid, DELTA) == (epsilon(paid, DELTA / 2, "prv"), "prv")


@pytest.mark.parametrize("paid", [KINDS, KINDS[:2], KINDS[1:], [Steps(1.0, 0.01, 5000), Steps(1.0, 0.0100001)]])
def test_several_kinds_share_half_of_delta_among_fixed_orders(paid: list[Steps]) -> None:
    share = DELTA / 2 / len(FILTER_ORDERS)
    expected = min(at_order(paid, order, share) for order in FILTER_ORDERS)
    found, accountant = filtered(paid, DELTA)
    assert accountant == "rdp"
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_orders_are_among_those_that_divergences_are_known_for() -> None:
    assert set(FILTER_ORDERS) <= set(ORDERS)


@pytest.mark.parametrize("limit", [0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
def test_fixed_orders_cost_little_more_than_the_order_that_is_best_for_a_limit(limit: float) -> None:
    worst = 0.0
    for kind in (Steps(0.7, 0.001), Steps(1.0, 0.01), Steps(3.0, 0.1), Steps(20.0)):
        room = [limit - at_order([], float(order), DELTA / 2) for order in ORDERS]
        count = int(max(room / divergences(kind.noise_multiplier, kind.sample_rate)))
        if count:
            paid = [Steps(kind.noise_multiplier, kind.sample_rate, count), Steps(1e9)]
            worst = max(worst, filtered(paid, DELTA)[0] / limit)
    assert 1 <= worst <= 1.45


def test_it_is_never_below_an_account_of_fixed_releases() -> None:
    for number in range(1, len(KINDS) + 1):
        assert epsilon(KINDS[:number], DELTA, "prv") < filtered(KINDS[:number], DELTA)[0]


def test_a_kind_more_never_costs_less() -> None:
    assert filtered([FIRST], DELTA)[0] < filtered([FIRST, Steps(30.0, 0.001, 1)], DELTA)[0]


def test_nothing_costs_nothing_and_no_noise_everything() -> None:
    assert filtered([], DELTA)[0] == filtered([Steps(math.inf)], DELTA)[0] == 0
    assert filtered([FIRST, Steps(0.0)], DELTA)[0] == math.inf
