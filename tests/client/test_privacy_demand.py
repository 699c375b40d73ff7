from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atoll.client import PrivacyDemand, TaskKind, UsageError
from atoll.client.testing import make_task
from atoll.wire.privacy_terms import PrivacyAdjacency, PrivacyMechanism
from tests.wire.test_privacy_terms import TERMS


@pytest.mark.parametrize(
    ("demand", "expected"),
    [
        (PrivacyDemand(), None),
        (PrivacyDemand(max_epsilon=8.0, max_delta=1e-5, min_noise_multiplier=1.1, mechanisms=("gaussian",)), None),
        (PrivacyDemand(max_epsilon=7.99), "the run's epsilon is 8, at most 7.99 allowed"),
        (PrivacyDemand(max_delta=1e-6), "the run's delta is 1e-05, at most 1e-06 allowed"),
        (PrivacyDemand(min_noise_multiplier=1.2), "the noise multiplier is 1.1, at least 1.2 wanted"),
        (PrivacyDemand(mechanisms=("tree", "banded")), "the mechanism is gaussian, allowed are tree, banded"),
        (PrivacyDemand(adjacencies=("add_remove",), samplings=("none", "poisson")), None),
        (PrivacyDemand(adjacencies=("replace_one",)), "the adjacency is add_remove, allowed are replace_one"),
        (PrivacyDemand(units=("row",)), "the unit is participant, allowed are row"),
        (PrivacyDemand(samplings=("none",)), "the sampling that counts is poisson, allowed are none"),
    ],
)
def test_terms_are_compared_with_the_demand(demand: PrivacyDemand, expected: str | None) -> None:
    assert demand.objection(make_task(privacy=TERMS)) == expected
    assert replace(demand, require=False).objection(make_task(privacy=TERMS)) == expected


def test_noise_is_compared_over_the_sensitivity() -> None:
    """Replacing one participant by another moves a sum by twice the most that one can add to it."""
    terms = replace(TERMS, adjacency=PrivacyAdjacency.REPLACE_ONE)
    assert PrivacyDemand(min_noise_multiplier=0.55).objection(make_task(privacy=terms)) is None
    assert PrivacyDemand(min_noise_multiplier=0.56).objection(make_task(privacy=terms)) == (
        "the noise multiplier is 0.55 (1.1 over a sensitivity of 2, for replace_one), at least 0.56 wanted"
    )


@pytest.mark.parametrize("limit", [{"max_total_epsilon": 20.0}, {"max_total_delta": 1e-4}])
def test_runs_that_promise_nothing_have_no_total(limit: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="require = false with max_total_epsilon or max_total_delta"):
        PrivacyDemand(require=False, **limit)  # type: ignore[arg-type]  # numbers, by name


def test_a_run_without_terms() -> None:
    expected = "the run has no privacy terms, and they are required"
    assert PrivacyDemand().objection(make_task()) == expected
    assert PrivacyDemand().objection(make_task(evaluate=True)) == expected
    assert PrivacyDemand(require=False, max_epsilon=1.0).objection(make_task()) is None


@pytest.mark.parametrize("fields", [{"evaluate": True}, {"kind": TaskKind.EVALUATE}])
def test_metrics_are_not_covered_by_terms(fields: dict[str, Any]) -> None:
    assert "metrics" in (PrivacyDemand().objection(make_task(privacy=TERMS, **fields)) or "")
    assert PrivacyDemand(require=False).objection(make_task(privacy=TERMS, **fields)) is None


def test_mechanisms_go_by_the_names_of_the_wire() -> None:
    demand = PrivacyDemand(mechanisms=("banded",))
    assert demand.objection(make_task(privacy=replace(TERMS, mechanism=PrivacyMechanism.BANDED))) is None
