"""The ledger compared with the releases that it charges for, on real stores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, update

from atoll.server.privacy import ledger, reconciling
from atoll.server.stores import Store, StoreDamagedError, charges, deletion, populations, schema
from tests.server.privacy.ledgers import CLINIC, FIRST, SECOND, contract, fill, submit

CHARGES, ROWS = schema.charges, schema.populations


@pytest.fixture
def clinic(store: Store) -> Store:
    """Three releases of one run, then two of another."""
    store.writer.submit(fill).result()
    return store


def cut(connection: Connection, keep: int) -> None:
    """Remove the last charges and adjust count, head and checksum, as anyone with write access to the database can."""
    connection.execute(CHARGES.delete().where(CHARGES.c.population == CLINIC, CHARGES.c.seq >= keep))
    row = populations.get(connection, CLINIC)
    head = row.root if not keep else charges.digest_at(connection, CLINIC, keep - 1)
    assert head is not None
    populations.put(connection, dataclasses.replace(row, charges=keep, head=head))


def forget(connection: Connection) -> None:
    """Remove a population with all its charges."""
    connection.execute(CHARGES.delete().where(CHARGES.c.population == CLINIC))
    connection.execute(ROWS.delete().where(ROWS.c.name == CLINIC))


def count_less(connection: Connection) -> None:
    cut(connection, 4)
    connection.execute(update(schema.noise_states).where(schema.noise_states.c.run_id == SECOND).values(version=1))


def count_less_but_the_runs_own(connection: Connection) -> None:
    count_less(connection)
    connection.execute(schema.models.delete().where(schema.models.c.run_id == SECOND, schema.models.c.version == 2))
    connection.execute(update(schema.runs).where(schema.runs.c.id == SECOND).values(rounds_released=2))


def wind_noise_back(connection: Connection) -> None:
    connection.execute(update(schema.noise_states).where(schema.noise_states.c.run_id == FIRST).values(version=2))


def lose_noise(connection: Connection) -> None:
    connection.execute(schema.noise_states.delete().where(schema.noise_states.c.run_id == FIRST))


def charge_others(connection: Connection) -> None:
    job = "[privacy]\npopulation = 'school'"
    connection.execute(update(schema.runs).where(schema.runs.c.id == FIRST).values(job_toml=job))


def test_a_ledger_that_agrees_is_in_order(clinic: Store) -> None:
    assert clinic.reader.submit(ledger.flaws).result() == {}
    clinic.reader.submit(ledger.check, contract(), FIRST, 3).result()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda connection: cut(connection, 4), "run rsecond has released 2 models, 1 charges for them are here"),
        (lambda connection: cut(connection, 0), "run rfirst has released 3 models, 0 charges for them are here; run r"),
        (forget, "the privacy ledger of population clinic is damaged: it is not on record, though runs name it"),
        (count_less, "run rsecond has released 2 models, 1 charges"),
        (count_less_but_the_runs_own, "run rsecond has released 2 models, 1 charges"),
        (wind_noise_back, "the noise of run rfirst stands after 2 releases, 3 charges for them are here"),
        (lose_noise, "the noise of run rfirst is not on record"),
        (charge_others, "run rfirst is charged here, its job names population school"),
    ],
)
def test_a_ledger_that_was_made_to_fit_itself_is_found(
    clinic: Store, change: Callable[[Connection], None], expected: str
) -> None:
    clinic.writer.submit(change).result()
    assert expected in clinic.reader.submit(ledger.flaws).result()[CLINIC]
    with pytest.raises(StoreDamagedError, match="the privacy ledger of population clinic is damaged"):
        clinic.reader.submit(ledger.check, contract(), SECOND, 2).result()
    with pytest.raises(StoreDamagedError):
        clinic.reader.submit(ledger.spent, CLINIC).result()


def test_charges_of_deleted_runs_have_nothing_to_agree_with(clinic: Store) -> None:
    clinic.writer.submit(deletion.delete_run, FIRST).result()
    assert clinic.reader.submit(ledger.flaws).result() == {}
    assert [run.releases for run in clinic.reader.submit(ledger.spent, CLINIC).result().runs] == [3, 2]


def test_at_most_a_few_disagreements_are_reported_at_once(store: Store) -> None:
    for number in range(reconciling.MAX_REPORTED + 2):
        store.writer.submit(submit, f"r{number}", contract()).result()
    released = update(schema.runs).values(rounds_released=1)
    store.writer.submit(lambda connection: connection.execute(released)).result()
    expected = store.reader.submit(ledger.flaws).result()[CLINIC]
    assert expected.count("has released 1 models") == reconciling.MAX_REPORTED
    assert expected.endswith("; 2 more runs disagree")


def test_an_unreadable_job_names_no_population() -> None:
    assert reconciling.population_of_job("[privacy", "default") == ""
    assert reconciling.population_of_job("[job]\nname = 'x'", "default") == ""
