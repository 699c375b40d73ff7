"""A run is refused at submission exactly if its population's limit would stop it; the refusal says where."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from atoll.server.privacy import ledger
from atoll.server.privacy.contract import AdaptiveClipping, Contract
from atoll.server.privacy.errors import BudgetSpentError
from atoll.server.privacy.events import Sampling
from atoll.server.privacy.plan_check import FLOAT_ROOM, check_plan, rounds_that_fit
from atoll.server.stores import Store
from tests.properties import examples
from tests.server.privacy.ledgers import CLINIC, DELTA, contract, release_of, submit
from tests.server.stores.samples import NOW

NUMBERS = itertools.count()


def limit(store: Store, epsilon: float, population: str = CLINIC) -> None:
    store.writer.submit(ledger.set_limit, population, (epsilon, DELTA), operator="officer", now=NOW).result()


def refusal(store: Store, promise: Contract) -> BudgetSpentError | None:
    try:
        store.reader.submit(check_plan, promise).result()
    except BudgetSpentError as error:
        return error
    return None


def played(store: Store, run: str, promise: Contract) -> int:
    """Release the run's rounds as the coordinator does, until its budget stops it; returns their number."""
    for version in range(promise.rounds):
        try:
            store.reader.submit(ledger.check, promise, run, version).result()
        except BudgetSpentError:
            return version
        assert store.writer.submit(ledger.record, release_of(run, version, promise), promise, version).result()
    return promise.rounds


def begun(store: Store, promise: Contract) -> str:
    run = f"r{next(NUMBERS):08}"
    store.writer.submit(submit, run, promise).result()
    return run


MECHANISMS = st.sampled_from(["poisson", "gaussian", "tree", "banded"])


@st.composite
def promises(draw: st.DrawFn) -> Contract:
    """A run of some rounds; correlated noise of participants that may be in every second one."""
    noise, rounds = draw(st.sampled_from([0.7, 1.0, 2.5])), draw(st.integers(1, 9))
    kind = draw(MECHANISMS)
    if kind == "poisson":
        return contract(noise_multiplier=noise, rounds=rounds, sample_rate=draw(st.sampled_from([0.05, 0.3])))
    made: dict[str, Any] = {"mechanism": kind, "sampling": Sampling.NONE, "sample_rate": 1.0}
    made |= {"max_participations": draw(st.integers(1, 4)), "min_separation": 2, "bands": 2 if kind == "banded" else 1}
    return contract(**made, noise_multiplier=noise, rounds=rounds)


@pytest.mark.parametrize("database_url", [None], ids=["sqlite"])  # sums of what any database gives back
@given(
    before=st.lists(promises(), max_size=2),
    promise=promises(),
    share=st.sampled_from([0.0, 0.3, 0.7, 0.99, 1.0, 1.5]),
)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_accepted_run_finishes_and_a_refused_one_stops_where_the_refusal_says(
    store: Store, before: list[Contract], promise: Contract, share: float
) -> None:
    population = f"people{next(NUMBERS)}"
    for one in before:
        earlier = replace(one, population=population)
        assert played(store, begun(store, earlier), earlier) == earlier.rounds
    promise = replace(promise, population=population)
    run = begun(store, promise)
    standing = store.reader.submit(ledger.tallied, population).result()[1]
    spent = ledger.filtered_of(standing, (), DELTA)[0]
    planned = ledger.filtered_of(standing, promise.costs(promise.rounds), DELTA)[0]
    enough = planned * (1 + 2 * FLOAT_ROOM)
    epsilon = enough if share == 1 else max(1e-6, spent + share * (planned - spent))
    assume(epsilon >= enough or epsilon < planned * (1 - FLOAT_ROOM))
    limit(store, epsilon, population)
    refused = refusal(store, promise)
    released = played(store, run, promise)
    if refused is None:
        assert released == promise.rounds
    else:
        assert released < promise.rounds
        assert f"the limit would be passed at round {released + 1} of {promise.rounds}" in str(refused)


def test_the_refusal_names_round_budget_and_remedies_that_hold(store: Store) -> None:
    promise = contract(rounds=20)
    begun(store, promise)
    limit(store, 2.0)
    refused = refusal(store, promise)
    assert refused is not None
    rounds = re.search(r"set job\.rounds = (\d+)", refused.detail.remedy)
    noise = re.search(r"noise_multiplier = ([\d.]+) instead of 1;", refused.detail.remedy)
    assert rounds is not None
    assert noise is not None
    fits = int(rounds[1])
    assert "of a limit of 2 at delta 1e-05 is spent, its 20 rounds cost" in str(refused)
    assert f"the limit would be passed at round {fits + 1} of 20" in str(refused)
    assert refusal(store, replace(promise, rounds=fits)) is None
    assert refusal(store, replace(promise, rounds=fits + 1)) is not None
    enough = float(noise[1])
    assert refusal(store, replace(promise, noise_multiplier=enough)) is None
    assert refusal(store, replace(promise, noise_multiplier=0.999 * enough)) is not None


def test_rounds_of_a_job_with_a_target_fit_only_with_its_noise_as_it_is(store: Store) -> None:
    """With fewer rounds, less noise meets the target, and the spending is the same."""
    promise = contract(rounds=20, epsilon=4.0)
    begun(store, promise)
    limit(store, 2.0)
    refused = refusal(store, promise)
    assert refused is not None
    assert "with privacy.noise_multiplier = 1 instead of epsilon: set job.rounds" in refused.detail.remedy


def test_noise_that_is_suggested_is_that_of_the_whole_release(store: Store) -> None:
    clipping = AdaptiveClipping(1.0, 0.5, 0.2, 5.0)
    promise = contract(rounds=20, adaptive=clipping)
    begun(store, promise)
    limit(store, 2.0)
    refused = refusal(store, promise)
    assert refused is not None
    noise = re.search(r"privacy\.noise_multiplier = ([\d.]+) instead of 0\.99", refused.detail.remedy)
    assert noise is not None
    assert refusal(store, contract(rounds=20, noise_multiplier=float(noise[1]))) is None


def test_where_the_limit_is_spent_no_rounds_and_no_noise_are_suggested(store: Store) -> None:
    promise = contract()
    played(store, begun(store, promise), promise)
    limit(store, 0.1)
    refused = refusal(store, promise)
    assert refused is not None
    assert "would be passed at round 1 of 10" in str(refused)
    assert "job.rounds" not in refused.detail.remedy
    assert "noise_multiplier" not in refused.detail.remedy
    assert "atoll privacy limit clinic" in refused.detail.remedy


@pytest.mark.parametrize("fits", range(-1, 9))
def test_the_most_rounds_that_fit(fits: int) -> None:
    assert rounds_that_fit(float, 9, fits + 0.5) == fits
