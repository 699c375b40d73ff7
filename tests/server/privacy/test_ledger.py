import dataclasses
import itertools
import threading
from collections.abc import Iterator, Sequence

import pytest
from sqlalchemy import Connection, Executable, event, select, update

from atoll.server.errors import InvalidRequestError
from atoll.server.privacy import accounting, ledger
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.errors import AdjacencyError, BudgetSpentError
from atoll.server.privacy.events import Adjacency, Event, Sampling
from atoll.server.privacy.mechanisms import Strategy
from atoll.server.privacy.plan_check import check_plan
from atoll.server.privacy.reservations import Reservations
from atoll.server.privacy.tally import parsed_cost
from atoll.server.stores import (
    NoiseRecord,
    RecordMissingError,
    Store,
    StoreDamagedError,
    charges,
    models,
    noise_states,
    populations,
    schema,
)
from tests.patience import WAIT_S
from tests.server.privacy.ledgers import CLINIC, DELTA, FIRST, SECOND, contract, release_of, submit
from tests.server.stores.samples import NOW


def charge(store: Store, run_id: str, versions: Sequence[int], promise: Contract) -> None:
    for version in versions:
        assert store.writer.submit(ledger.record, release_of(run_id, version, promise), promise, version).result()


def spent(store: Store) -> ledger.Spent:
    return store.reader.submit(ledger.spent, CLINIC).result()


def limit(store: Store, epsilon: float, delta: float = DELTA) -> None:
    store.writer.submit(ledger.set_limit, CLINIC, (epsilon, delta), operator="officer", now=NOW).result()


@pytest.fixture
def clinic(store: Store) -> Store:
    """Two runs of one population."""
    for name in (FIRST, SECOND):
        store.writer.submit(submit, name, contract()).result()
    return store


_BEGINS = {"sqlite": ("BEGIN IMMEDIATE",), "postgresql": ()}
"""Statements of a transaction before the function's own."""


def _all_rows(connection: Connection) -> dict[str, list[str]]:
    """Every row of every table that a release touches."""
    tables = (schema.charges, schema.populations, schema.noise_states, schema.models, schema.rounds, schema.events)
    return {table.name: [str(row) for row in connection.execute(select(table))] for table in tables}


def poisson(count: int) -> tuple[Event, ...]:
    return (Event(1.0, 0.1, count, Sampling.POISSON),)


def kept(events: Sequence[Event]) -> float:
    """Return the epsilon of the filter for events."""
    return accounting.filtered(events, DELTA)[0]


def test_what_is_charged_adds_up(clinic: Store) -> None:
    assert (spent(clinic).epsilon, spent(clinic).delta, spent(clinic).left) == (0.0, None, None)
    charge(clinic, FIRST, range(3), contract())
    found = spent(clinic)
    assert found.epsilon == kept(poisson(3))
    by_run = accounting.epsilon(poisson(3), DELTA, "rdp")
    assert [(one.run_id, one.releases, one.epsilon) for one in found.runs] == [(FIRST, 3, by_run)]
    charge(clinic, SECOND, range(2), contract())
    found = spent(clinic)
    assert found.epsilon == kept(poisson(5))
    assert [one.releases for one in found.runs] == [3, 2]


def test_one_filter_adds_a_population_up_from_its_first_charge_on(clinic: Store) -> None:
    """Switching from PRV to RDP with the second run would prove (epsilon, 2 delta) only."""
    charge(clinic, FIRST, range(3), contract(accountant="prv"))
    alone = spent(clinic)
    assert (alone.accountant, alone.epsilon) == ("prv", accounting.epsilon(poisson(3), DELTA / 2, "prv"))
    assert alone.runs[0].epsilon == accounting.epsilon(poisson(3), DELTA, "prv")
    charge(clinic, SECOND, range(3), contract(accountant="prv"))
    both = spent(clinic)
    assert (both.accountant, both.epsilon) == ("prv", accounting.epsilon(poisson(6), DELTA / 2, "prv"))
    assert {one.epsilon for one in both.runs} == {alone.runs[0].epsilon}


def test_runs_of_several_kinds_cost_the_same_whenever_a_limit_is_set_and_however_high(clinic: Store) -> None:
    """A Renyi order that depended on a limit would be chosen after results, if the limit is set after charges."""
    charge(clinic, FIRST, range(3), contract())
    charge(clinic, SECOND, range(3), contract(noise_multiplier=3.0))
    events = (*poisson(3), Event(3.0, 0.1, 3, Sampling.POISSON))
    assert (spent(clinic).accountant, spent(clinic).epsilon) == ("rdp", kept(events))
    for epsilon in (0.5, 2.0, 8.0, 50.0, 3.0):
        limit(clinic, epsilon)
        assert (spent(clinic).accountant, spent(clinic).epsilon) == ("rdp", kept(events))


def test_the_ledger_names_the_accountant_that_answered(clinic: Store) -> None:
    """PRV has none where losses are beyond what float64 can hold; RDP then answers."""
    charge(clinic, FIRST, range(3), contract(accountant="prv", noise_multiplier=0.02))
    found = spent(clinic)
    assert (found.accountant, found.runs[0].accountant) == ("rdp", "rdp")
    assert found.runs[0].epsilon == accounting.epsilon((Event(0.02, 0.1, 3, Sampling.POISSON),), DELTA, "rdp")


def test_releases_that_cost_nothing_more_are_kept_all_the_same(clinic: Store) -> None:
    capped = contract(sampling=Sampling.NONE, sample_rate=1.0, max_participations=2)
    charge(clinic, FIRST, range(4), capped)
    found = spent(clinic)
    assert found.runs[0].releases == 4
    assert found.epsilon == pytest.approx(kept((Event(1.0, count=2),)), rel=1e-9)


def test_the_clip_norm_of_the_round_is_on_record(clinic: Store) -> None:
    clipped = ledger.charge_of(contract(), run_id=FIRST, round_number=0, attempt=0, version=0, now=NOW, clip=0.5)
    release = dataclasses.replace(release_of(FIRST, 0, contract()), charge=clipped)
    clinic.writer.submit(ledger.record, release, contract(), 0).result()
    kept = clinic.reader.submit(charges.get, FIRST, 0).result()
    assert kept is not None
    assert parsed_cost(kept).clip == 0.5


@pytest.mark.parametrize("mechanism", ["gaussian", "tree", "banded", "blt"])
def test_correlated_noise_keeps_to_its_plan(clinic: Store, mechanism: str) -> None:
    """The costs of single rounds add up to the contract's cost of all, and each round fits the target."""
    capped = contract(
        mechanism=mechanism,
        sampling=Sampling.NONE,
        sample_rate=1.0,
        max_participations=3,
        min_separation=3,
        bands=2,
        strategy=Strategy((0.5, 0.9375), (0.25, 0.125), 6),
    )
    capped = dataclasses.replace(capped, epsilon=capped.epsilon_after(capped.rounds))
    charge(clinic, FIRST, range(capped.rounds), capped)
    found = spent(clinic)
    assert found.runs[0].releases == capped.rounds
    assert found.runs[0].epsilon == pytest.approx(capped.epsilon_after(capped.rounds), rel=1e-9)


def test_a_round_that_would_pass_the_limit_does_not_start(clinic: Store) -> None:
    limit(clinic, kept(poisson(3)) + 1e-6)
    charge(clinic, FIRST, range(2), contract())
    clinic.reader.submit(ledger.check, contract(), SECOND, 0).result()
    charge(clinic, SECOND, [0], contract())
    with pytest.raises(BudgetSpentError, match="round 3 of run rfirst would make it") as refused:
        clinic.reader.submit(ledger.check, contract(), FIRST, 2).result()
    assert "the privacy budget of population clinic has no room for the next round: epsilon" in str(refused.value)
    assert "of a limit of" in str(refused.value)
    assert "atoll privacy limit" in refused.value.detail.remedy
    left = spent(clinic).left
    assert left is not None
    assert 0 <= left < 1e-5


def test_a_run_whose_rounds_do_not_fit_is_refused(clinic: Store) -> None:
    """The check adds the population's charges and the run's planned ones with one accountant for both."""
    clinic.reader.submit(check_plan, contract(population="school")).result()  # it has no limit
    clinic.reader.submit(check_plan, contract()).result()
    limit(clinic, kept(poisson(10)) + 1e-6)
    clinic.reader.submit(check_plan, contract()).result()
    with pytest.raises(BudgetSpentError, match=r"no room for this run: epsilon 0 of a limit of .* its 11 rounds cost"):
        clinic.reader.submit(check_plan, contract(rounds=11)).result()
    charge(clinic, FIRST, [0], contract())
    clinic.reader.submit(check_plan, contract(rounds=9)).result()
    with pytest.raises(BudgetSpentError, match=r"together .* by prv"):
        clinic.reader.submit(check_plan, contract(accountant="prv")).result()


def test_rounds_under_way_count(clinic: Store) -> None:
    limit(clinic, kept(poisson(2)) + 1e-6)
    clinic.reader.submit(ledger.check, contract(), FIRST, 0, reserved=poisson(1)).result()
    with pytest.raises(BudgetSpentError, match="with rounds under way"):
        clinic.reader.submit(ledger.check, contract(), FIRST, 0, reserved=poisson(2)).result()


def test_a_charge_is_checked_again_and_nothing_is_released(clinic: Store) -> None:
    clinic.reader.submit(ledger.check, contract(), FIRST, 0).result()
    limit(clinic, kept(poisson(1)) / 2)
    before = clinic.reader.submit(populations.get, CLINIC).result()
    with pytest.raises(BudgetSpentError):
        clinic.writer.submit(ledger.record, release_of(FIRST, 0, contract()), contract(), 0).result()
    assert clinic.reader.submit(populations.get, CLINIC).result() == before
    assert clinic.reader.submit(models.latest, FIRST).result() is None
    assert clinic.reader.submit(noise_states.find, FIRST).result() == NoiseRecord(FIRST, 0, "{}")


def test_a_fault_at_any_statement_releases_and_charges_nothing(clinic: Store) -> None:
    """Each statement of the transaction fails in turn, until none is left to fail."""
    release, engine = release_of(FIRST, 0, contract()), clinic.writer._engine
    before = clinic.reader.submit(_all_rows).result()
    statements = 0
    for failing in itertools.count():
        seen = itertools.count()

        def fail(*_: object, seen: Iterator[int] = seen, failing: int = failing) -> None:
            if next(seen) == failing + len(_BEGINS[engine.dialect.name]):
                raise RuntimeError("the disk is gone")

        event.listen(engine, "before_cursor_execute", fail)
        try:
            clinic.writer.submit(ledger.record, release, contract(), 0).result()
        except RuntimeError:
            statements += 1
        else:
            break
        finally:
            event.remove(engine, "before_cursor_execute", fail)
        assert clinic.reader.submit(_all_rows).result() == before
    assert statements >= 7  # charge, head, noise, model, round and what is read for them
    assert spent(clinic).runs[0].releases == 1
    assert clinic.reader.submit(noise_states.find, FIRST).result() == release.noise


def test_the_same_release_again_changes_nothing_also_when_the_budget_is_spent(clinic: Store) -> None:
    limit(clinic, kept(poisson(1)) + 1e-6)
    release = release_of(FIRST, 0, contract())
    assert clinic.writer.submit(ledger.record, release, contract(), 0).result() is True
    found = spent(clinic)
    assert clinic.writer.submit(ledger.record, release, contract(), 0).result() is False
    assert spent(clinic) == found


def test_a_run_keeps_to_its_own_target(clinic: Store) -> None:
    target = accounting.epsilon(poisson(10), DELTA, "rdp")
    kept = contract(epsilon=target)
    charge(clinic, FIRST, range(10), kept)
    with pytest.raises(ValueError, match="the contract is for 10 rounds"):
        clinic.reader.submit(ledger.check, kept, FIRST, 10).result()
    longer = contract(epsilon=target, rounds=11)
    with pytest.raises(BudgetSpentError, match="its round 11 would make it") as refused:
        clinic.reader.submit(ledger.check, longer, FIRST, 10).result()
    assert f"of its target of {target:g} at delta" in str(refused.value)


def test_promises_of_two_kinds_do_not_add_up(clinic: Store) -> None:
    other = contract(adjacency=Adjacency.REPLACE_ONE)
    with pytest.raises(AdjacencyError, match="add_remove adjacency; this run promises replace_one") as refused:
        clinic.writer.submit(ledger.enrol, other, NOW).result()
    assert "name another population" in refused.value.detail.remedy


def test_a_limit_is_set_changed_and_taken_away(clinic: Store) -> None:
    limit(clinic, 8.0)
    found = spent(clinic).population
    assert (found.epsilon, found.delta, found.limited_by, found.limited_at) == (8.0, DELTA, "officer", NOW)
    clinic.writer.submit(ledger.set_limit, CLINIC, None, operator="officer", now=NOW + 1).result()
    assert spent(clinic).left is None


@pytest.mark.parametrize(
    "bad", [(0.0, DELTA), (float("nan"), DELTA), (float("inf"), DELTA), (1.0, 0.0), (1.0, 0.999), (1.0, 1e-16)]
)
def test_a_limit_that_is_none_is_refused(clinic: Store, bad: tuple[float, float]) -> None:
    with pytest.raises(InvalidRequestError, match="not a limit"):
        clinic.writer.submit(ledger.set_limit, CLINIC, bad, operator="officer", now=NOW).result()


def test_a_population_may_be_limited_before_its_first_run(store: Store) -> None:
    def begin(adjacency: Adjacency | None) -> None:
        store.writer.submit(
            ledger.set_limit, CLINIC, (8.0, DELTA), operator="officer", now=NOW, adjacency=adjacency
        ).result()

    with pytest.raises(RecordMissingError, match="there is no population 'clinic'") as missing:
        begin(None)
    assert "--create" in missing.value.detail.remedy
    begin(Adjacency.ADD_REMOVE)
    with pytest.raises(AdjacencyError):
        begin(Adjacency.REPLACE_ONE)
    store.writer.submit(submit, FIRST, contract()).result()
    assert spent(store).left == 8.0


def test_damage_is_named(clinic: Store) -> None:
    charge(clinic, FIRST, range(4), contract())
    assert clinic.reader.submit(ledger.flaws).result() == {}
    rows = schema.charges

    def damaged(connection: Connection, change: Executable) -> None:
        connection.execute(change)
        found = ledger.flaws(connection).get(CLINIC, "")
        raise RuntimeError(found)  # so that it is rolled back

    second = clinic.reader.submit(charges.get, FIRST, 1).result()
    assert second is not None
    cheaper = second.body.replace("1.0", "9.0")
    for change, shown in (
        (update(rows).where(rows.c.seq == 1).values(body=cheaper), "charge 1 was changed"),
        (update(rows).where(rows.c.seq == 1).values(charged_at=1.0), "charge 1 was changed"),
        (rows.delete().where(rows.c.seq == 1), "charge 1 is missing: charge 2 comes in its place"),
        (rows.delete().where(rows.c.seq == 3), "4 charges are on record, the first 3 are here"),
        (update(rows).where(rows.c.seq == 2).values(previous="0" * 64), "charge 2 does not follow"),
        (update(schema.populations).values(charges=3), "population clinic was changed on disk"),
    ):
        with pytest.raises(RuntimeError, match=shown):
            clinic.writer.submit(damaged, change).result()
    assert spent(clinic).runs[0].releases == 4


def test_no_round_starts_on_a_damaged_ledger(clinic: Store) -> None:
    charge(clinic, FIRST, range(2), contract())
    last = schema.charges.delete().where(schema.charges.c.seq == 1)
    clinic.writer.submit(lambda connection: connection.execute(last)).result()
    with pytest.raises(StoreDamagedError, match="the privacy ledger of population clinic is damaged"):
        clinic.reader.submit(ledger.check, contract(), SECOND, 0).result()


def test_a_failed_transaction_is_not_remembered(clinic: Store) -> None:
    """A tally made inside a transaction that is rolled back must not be remembered."""

    def fail(connection: Connection) -> None:
        ledger.record(connection, release_of(FIRST, 0, contract()), contract(), 0)
        assert ledger.spent(connection, CLINIC).epsilon > 0
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        clinic.writer.submit(fail).result()
    assert spent(clinic).epsilon == 0.0
    charge(clinic, SECOND, [0], contract())
    assert [one.run_id for one in spent(clinic).runs] == [SECOND]


def test_two_runs_at_once_never_pass_the_limit(clinic: Store) -> None:
    """Both reserve, check and charge as fast as they can, in separate threads; the limit has room for seven."""
    limit(clinic, kept(poisson(7)) + 1e-6)
    reservations, refused = Reservations(), []

    def rounds(run_id: str) -> None:
        for version in range(10):
            others = reservations.hold(CLINIC, run_id, contract().cost(version))
            try:
                clinic.reader.submit(ledger.check, contract(), run_id, version, reserved=others).result()
                clinic.writer.submit(
                    ledger.record, release_of(run_id, version, contract()), contract(), version
                ).result()
            except BudgetSpentError:
                refused.append(run_id)
                return
            finally:
                reservations.release(run_id)

    threads = [threading.Thread(target=rounds, args=(name,)) for name in (FIRST, SECOND)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    found = spent(clinic)
    total = sum(one.releases for one in found.runs)
    assert sorted(refused) == [FIRST, SECOND]
    assert 6 <= total <= 7  # each may be refused because of the other's reservation
    assert clinic.reader.submit(ledger.flaws).result() == {}
    assert found.population.charges == total


def test_reservations_are_of_others_in_the_population() -> None:
    reservations, cost = Reservations(), Event(1.0)
    assert reservations.hold(CLINIC, FIRST, cost) == ()
    assert reservations.hold(CLINIC, SECOND, cost) == (cost,)
    assert reservations.hold("school", "rthird", cost) == ()
    assert reservations.hold(CLINIC, "rfree", None) == (cost, cost)
    reservations.release(SECOND)
    reservations.release(SECOND)
    assert reservations.hold(CLINIC, FIRST, cost) == ()
