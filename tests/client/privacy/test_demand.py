from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atoll.client import PrivacyDemand, TaskKind
from atoll.client.testing import make_task
from atoll.wire.privacy import PrivacyMechanism
from tests.wire.test_privacy import TERMS


@pytest.mark.parametrize(
    ("demand", "expected"),
    [
        (PrivacyDemand(), None),
        (PrivacyDemand(max_epsilon=8.0, max_delta=1e-5, min_noise_multiplier=1.1, mechanisms=("gaussian",)), None),
        (PrivacyDemand(max_epsilon=7.99), "the run's epsilon is 8, at most 7.99 allowed"),
        (PrivacyDemand(max_delta=1e-6), "the run's delta is 1e-05, at most 1e-06 allowed"),
        (PrivacyDemand(min_noise_multiplier=1.2), "the noise multiplier is 1.1, at least 1.2 wanted"),
        (PrivacyDemand(mechanisms=("tree", "banded")), "the mechanism is gaussian, allowed are tree, banded"),
    ],
)
def test_terms_are_compared_with_the_demand(demand: PrivacyDemand, expected: str | None) -> None:
    assert demand.objection(make_task(privacy=TERMS)) == expected
    assert replace(demand, require=False).objection(make_task(privacy=TERMS)) == expected


def test_a_run_without_terms() -> None:
    assert PrivacyDemand().objection(make_task()) == "the run has no privacy terms, and they are required"
    assert PrivacyDemand(require=False, max_epsilon=1.0).objection(make_task()) is None


@pytest.mark.parametrize("fields", [{"evaluate": True}, {"kind": TaskKind.EVALUATE}])
def test_metrics_are_not_covered_by_terms(fields: dict[str, Any]) -> None:
    assert "metrics" in (PrivacyDemand().objection(make_task(privacy=TERMS, **fields)) or "")
    assert PrivacyDemand(require=False).objection(make_task(privacy=TERMS, **fields)) is None


def test_mechanisms_go_by_the_names_of_the_wire() -> None:
    demand = PrivacyDemand(mechanisms=("banded",))
    assert demand.objection(make_task(privacy=replace(TERMS, mechanism=PrivacyMechanism.BANDED))) is None
