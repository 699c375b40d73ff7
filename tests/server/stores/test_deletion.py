import pytest
from sqlalchemy import Connection, func, select

from atoll.server.stores import (
    Charge,
    LoggedEvent,
    Member,
    Model,
    NoiseRecord,
    RecordMissingError,
    Snapshot,
    Store,
    charges,
    deletion,
    event_log,
    models,
    noise_states,
    participants,
    populations,
    reports,
    rounds,
    runs,
    snapshots,
)
from atoll.server.stores.schema import metadata
from tests.server.stores.samples import ALICE, DIGEST, NOW, OTHER_DIGEST, RUN, attempt, events, report, run

OTHER = "rother"
OF_RUNS = [table for table in metadata.sorted_tables if "run_id" in table.c]
STATE = "2" * 64


def _fill(connection: Connection) -> None:
    """A row of the run in every table that has rows of runs, and another run that shares its initial model."""
    runs.add(connection, run(OTHER))
    event_log.append(connection, OTHER, [LoggedEvent(0, NOW, "Started", "{}")])
    event_log.append(connection, RUN, events(0, 3))
    snapshots.put(connection, Snapshot.of(RUN, 2, 1, "{}"))
    rounds.put(connection, attempt())
    rounds.put_members(connection, [Member(RUN, 0, 0, ALICE, "reported")])
    reports.record(connection, report())
    models.add(connection, Model(RUN, 0, None, DIGEST, 10, NOW))
    models.add(connection, Model(RUN, 1, 0, OTHER_DIGEST, 10, NOW, (("momentum", STATE),)))
    charges.add(connection, Charge(RUN, 0, 0, charges.NO_MECHANISM, "{}", NOW))
    noise_states.add(connection, NoiseRecord(RUN, 0, "{}"))


def _rows(connection: Connection, run_id: str) -> dict[str, int]:
    counts = {table.name: select(func.count()).select_from(table).where(table.c.run_id == run_id) for table in OF_RUNS}
    return {name: connection.execute(query).scalar_one() for name, query in counts.items()}


@pytest.fixture
def filled(with_run: Store) -> Store:
    with_run.writer.submit(_fill).result()
    return with_run


async def test_no_row_of_the_run_is_left_and_none_of_another_goes(filled: Store) -> None:
    assert min((await filled.reader.run(_rows, RUN)).values()) > 0
    before = await filled.reader.run(_rows, OTHER)
    assert await filled.writer.run(deletion.delete_run, RUN) == {DIGEST, OTHER_DIGEST, STATE}
    assert set((await filled.reader.run(_rows, RUN)).values()) == {0}
    assert await filled.reader.run(_rows, OTHER) == before
    assert [one.id for one in await filled.reader.run(runs.listed, project=None)] == [OTHER]
    assert await filled.reader.run(lambda connection: participants.get(connection, ALICE)) is not None


async def test_blobs_that_other_runs_name_stay_named(filled: Store) -> None:
    named = await filled.writer.run(deletion.delete_run, RUN)
    assert await filled.reader.run(models.unnamed, named) == {OTHER_DIGEST, STATE}


async def test_what_was_spent_of_a_population_is_never_forgotten(filled: Store) -> None:
    def spend(connection: Connection) -> Charge:
        populations.add(connection, "clinic", "add_remove", NOW)
        return charges.add(connection, Charge(RUN, 1, 0, "gaussian", '{"clip":1.0}', NOW, "clinic"))

    kept = await filled.writer.run(spend)
    await filled.writer.run(deletion.delete_run, RUN)
    assert await filled.reader.run(charges.listed, RUN) == (kept,)
    assert (await filled.reader.run(populations.get, "clinic")).head == kept.digest


async def test_an_unknown_run_is_refused(filled: Store) -> None:
    with pytest.raises(RecordMissingError, match="there is no run 'rnope'"):
        await filled.writer.run(deletion.delete_run, "rnope")
