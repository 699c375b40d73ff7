import dataclasses

import pytest

from atoll.server.stores import RecordConflictError, RecordMissingError, Store, runs
from tests.server.stores.samples import NOW, OTHER_DIGEST, RUN, run


async def test_a_run_comes_back_as_it_was(with_run: Store) -> None:
    assert await with_run.reader.run(runs.get, RUN) == run()
    with pytest.raises(RecordMissingError, match="there is no run 'rother'"):
        await with_run.reader.run(runs.get, "rother")


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


async def test_lists(with_run: Store) -> None:
    older, ended = run("rolder", NOW - 1), dataclasses.replace(run("rended", NOW + 1), status="finished")
    for record in (older, ended):
        await with_run.writer.run(runs.add, record)
    assert await with_run.reader.run(runs.listed) == (ended, run(), older)
    assert await with_run.reader.run(runs.listed, limit=1) == (ended,)
    assert await with_run.reader.run(runs.with_status, {"running", "paused"}) == (older, run())
