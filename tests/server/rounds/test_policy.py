"""Policies are validated whole, and an error names the setting, the value and what is allowed."""

from collections.abc import Callable

import pytest

from atoll.server.rounds import LatePolicy, Patience, PolicyError, RunPolicy, StragglerPolicy, Weighting

S = StragglerPolicy(4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StragglerPolicy(0), r"cohort_size = 0: must be 1 or more"),
        (lambda: StragglerPolicy(4, over_selection=0.9), r"over_selection = 0\.9: must be from 1 to 100"),
        (lambda: StragglerPolicy(4, over_selection=float("nan")), r"over_selection = nan"),
        (lambda: StragglerPolicy(4, quorum=5), r"quorum = 5: must be from 1 to the cohort size, 4"),
        (lambda: StragglerPolicy(4, quorum=0), r"quorum = 0: must be from 1 to the cohort size, 4"),
        (lambda: StragglerPolicy(4, patience=Patience.ALL, quorum=-1), r"quorum = -1: must be from 0"),
        (lambda: StragglerPolicy(4, max_attempts=0), r"max_attempts = 0: must be 1 or more"),
        (lambda: StragglerPolicy(4, retry_delay_s=float("inf")), r"retry_delay_s = inf: must be finite"),
        (lambda: LatePolicy(max_staleness=-1), r"late\.max_staleness = -1: must be 0 or more"),
        (lambda: LatePolicy(exponent=-0.5), r"late\.exponent = -0\.5: must be finite and 0 or more"),
        (lambda: RunPolicy(0, S), r"rounds = 0: must be 1 or more"),
        (lambda: RunPolicy(-1, S, final_evaluation=True), r"rounds = -1: must be 0 or more"),
        (lambda: RunPolicy(1, S, evaluate_every=-1), r"evaluate_every = -1: must be 0"),
        (lambda: RunPolicy(1, S, max_weight=0), r"max_weight = 0: must be from 1"),
        (lambda: RunPolicy(1, S, max_abs=3.0), r"max_abs = 3\.0: must be a power of two"),
        (lambda: RunPolicy(1, S, max_abs=float("inf")), r"max_abs = inf"),
    ],
)
def test_a_bad_value_is_refused_by_name(make: Callable[[], object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make()


def test_over_selection_rounds_up_and_carried_updates_are_not_invited_for() -> None:
    straggler = StragglerPolicy(10, over_selection=1.25)
    assert [straggler.invited(carried) for carried in (0, 1, 9, 10, 11)] == [13, 12, 2, 0, 0]


def test_units_are_capped_examples_or_one() -> None:
    assert [RunPolicy(1, S, max_weight=5).counted_weight(w) for w in (1, 5, 9)] == [1, 5, 5]
    assert RunPolicy(1, S, weighting=Weighting.UNIFORM).counted_weight(9) == 1
