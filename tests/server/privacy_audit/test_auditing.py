"""Audits of every mechanism pass, and fail if its noise or its clipping is removed.

The audit is that of Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run", Algorithm 1.
"""

from __future__ import annotations

import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.privacy.contract import Contract
from atoll.server.privacy_audit.auditing import audit, design
from atoll.server.privacy_audit.rehearsal import Safeguards
from tests.server.privacy_audit.contracts import BANDED, BLT, GAUSSIAN, POISSON, TREE, contract

ALWAYS = {"poisson": POISSON, "blt": BLT}
OTHERS = {"gaussian": GAUSSIAN, "tree": TREE, "banded": BANDED}
"""A commit tests only that their audits accept right noise and refute wrong noise (``test_noise_scale``)."""
MECHANISMS = [
    *(pytest.param(terms, id=name) for name, terms in ALWAYS.items()),
    *(pytest.param(terms, id=name, marks=pytest.mark.every_case) for name, terms in OTHERS.items()),
]


@pytest.mark.parametrize("terms", MECHANISMS)
def test_the_bound_stays_under_the_claim_and_exceeds_it_without_noise_or_clipping(terms: Contract) -> None:
    plan = design(terms)
    assert plan.shows > plan.claimed
    sound = audit(plan)
    assert not sound.refuted
    assert sound.epsilon_at_least > plan.claimed / 20, "an audit that sees nothing proves nothing"
    assert audit(plan, safeguards=Safeguards(noise=0.0)).refuted
    assert audit(plan, safeguards=Safeguards(clipping=False)).refuted


def test_noise_at_a_tenth_is_found_too() -> None:
    plan = design(contract())
    assert audit(plan, safeguards=Safeguards(noise=0.1)).refuted


def test_directions_with_all_elements_see_as_much() -> None:
    plan = design(contract())
    found = audit(plan, "signs")
    assert plan.claimed / 4 < found.epsilon_at_least < plan.claimed


def test_at_epsilon_8_a_smaller_delta_leaves_something_to_see() -> None:
    plan = design(contract(noise_multiplier=0.6))
    assert plan.delta == pytest.approx(1e-6)
    assert 8.5 < plan.claimed < 9.0 < plan.shows


@pytest.mark.parametrize(
    ("terms", "settings", "reason"),
    [
        (contract(noise_multiplier=0.2), {}, "could not refute"),
        (contract(), {"canaries": 64}, "could not refute"),
        (contract(), {"canaries": 100}, "powers of two"),
    ],
)
def test_an_audit_that_cannot_fail_is_refused(terms: Contract, settings: dict[str, int], reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        design(terms, **settings)
