import dataclasses

import pytest
from sqlalchemy import text

from atoll.server.stores import RecordConflictError, RecordMissingError, Store, StoreDamagedError, runs
from tests.server.stores.samples import NOW, OTHER_DIGEST, RUN, run


async def test_a_run_comes_back_as_it_was(with_run: Store) -> None:
    assert await with_run.reader.run(runs.get, RUN) == run()
    with pytest.raises(RecordMissingError, match="there is no run 'rother'"):
        await with_run.reader.run(runs.get, "rother")


async def test_the_seed_comes_back(with_run: Store) -> None:
    seeded = dataclasses.replace(run("rseeded"), seed=2**63 - 1)
    await with_run.writer.run(runs.add, seeded)
    assert await with_run.reader.run(runs.get, "rseeded") == seeded


async def test_an_id_is_given_once(with_run: Store) -> None:
    with pytest.raises(RecordConflictError):
        await with_run.writer.run(runs.add, run())


async def test_status_and_model_change(with_run: Store) -> None:
    await with_run.writer.run(runs.set_model, RUN, OTHER_DIGEST, rounds_released=3)
    await with_run.writer.run(runs.set_status, RUN, "failed", reason="quorum", finished_at=NOW + 1)
    assert await with_run.reader.run(runs.get, RUN) == dataclasses.replace(
        run(),
        current_model=OTHER_DIGEST,
        rounds_released=3,
        status="failed",
        reason="quorum",
        finished_at=NOW + 1,
    )
    with pytest.raises(RecordMissingError):
        await with_run.writer.run(runs.set_status, "rother", "failed")
    with pytest.raises(RecordMissingError):
        await with_run.writer.run(runs.set_model, "rother", OTHER_DIGEST, rounds_released=1)


async def test_an_extension_changes_the_number_of_rounds_and_the_checksum(with_run: Store) -> None:
    for released, total in ((20, 30), (25, 26)):
        await with_run.writer.run(runs.extend, RUN, rounds_total=total, released=released)
    longer = dataclasses.replace(run(), rounds_total=26, extended_after=(20, 25))
    assert await with_run.reader.run(runs.get, RUN) == longer
    with pytest.raises(RecordMissingError):
        await with_run.writer.run(runs.extend, "rother", rounds_total=2, released=1)


async def test_lists(with_run: Store) -> None:
    older, ended = run("rolder", NOW - 1), dataclasses.replace(run("rended", NOW + 1), status="finished")
    for record in (older, ended):
        await with_run.writer.run(runs.add, record)
    assert await with_run.reader.run(runs.listed, project=None) == (ended, run(), older)
    assert await with_run.reader.run(runs.listed, project=None, limit=1) == (ended,)
    assert await with_run.reader.run(runs.with_status, {"running", "paused"}) == (older, run())


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE runs SET name = 'other'",
        "UPDATE runs SET job_toml = 'rounds = 21'",
        "UPDATE runs SET layout = 'x'",
        "UPDATE runs SET initial_model = replace(initial_model, '0', '1')",
        "UPDATE runs SET rounds_total = 21",
        "UPDATE runs SET keep_models = 1",
        "UPDATE runs SET submitted_by = 'oq'",
        "UPDATE runs SET seed = 1",
        "UPDATE runs SET created_at = created_at + 1",
    ],
)
async def test_what_a_run_was_submitted_with_cannot_change_unnoticed(with_run: Store, change: str) -> None:
    await with_run.writer.run(lambda connection: connection.execute(text(change)))
    with pytest.raises(StoreDamagedError, match=f"record of run {RUN} was changed on disk"):
        await with_run.reader.run(runs.get, RUN)
    with pytest.raises(StoreDamagedError):
        await with_run.reader.run(runs.with_status, {"running"})
    assert [shown.id for shown in await with_run.reader.run(runs.listed, project=None)] == [RUN]
