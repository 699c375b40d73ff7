from dataclasses import replace

import pytest
from sqlalchemy import Connection, text

from atoll.server.stores import Model, RecordConflictError, Store, StoreDamagedError, models, runs
from tests.server.stores.samples import DIGEST, NOW, RUN


def model(version: int, round_number: int | None) -> Model:
    name = f"{version:064x}"
    return Model(RUN, version, round_number, name, 10, NOW, (("momentum", f"{version + 100:064x}"),))


@pytest.fixture
def with_models(with_run: Store) -> Store:
    for made in (model(0, None), model(1, 0), model(2, 2)):
        with_run.writer.submit(models.add, made).result()
    return with_run


async def test_they_are_found_by_version_and_by_round(with_models: Store) -> None:
    run = with_models.reader.run
    assert await run(models.latest, RUN) == model(2, 2)
    assert await run(models.of_version, RUN, 0) == model(0, None)
    assert await run(models.of_version, RUN, 3) is None
    assert await run(models.of_round, RUN, 0) == model(1, 0)
    assert await run(models.of_round, RUN, 1) is None
    assert await run(models.listed, RUN) == (model(0, None), model(1, 0), model(2, 2))


@pytest.mark.parametrize("model", [model(2, 3), model(3, 2)])
async def test_a_version_and_a_round_have_onemodel(with_models: Store, model: Model) -> None:
    with pytest.raises(RecordConflictError):
        await with_models.writer.run(models.add, model)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE models SET blob = replace(blob, '2', '3') WHERE version = 2",
        "UPDATE models SET round = 7 WHERE version = 2",
        "UPDATE models SET size_bytes = 11 WHERE version = 2",
        "UPDATE models SET created_at = created_at + 1 WHERE version = 2",
        "UPDATE models SET optimiser_blobs = '{}' WHERE version = 2",
        "UPDATE models SET optimiser_blobs = replace(optimiser_blobs, 'momentum', 'variance') WHERE version = 2",
        "UPDATE models SET optimiser_blobs = replace(optimiser_blobs, '}', '') WHERE version = 2",
    ],
)
async def test_a_row_that_was_changed_on_disk_is_reported(with_models: Store, change: str) -> None:
    await with_models.writer.run(lambda connection: connection.execute(text(change)))
    with pytest.raises(StoreDamagedError, match=r"model 2 of run .* was changed on disk|cannot be read"):
        await with_models.reader.run(models.latest, RUN)
    with pytest.raises(StoreDamagedError):
        await with_models.reader.run(models.of_version, RUN, 2)
    with pytest.raises(StoreDamagedError):
        await with_models.reader.run(lambda connection: models.to_keep(connection, keep=1, ended_before=NOW))
    assert await with_models.reader.run(models.of_version, RUN, 1) == model(1, 0)


async def test_a_row_whose_states_were_forgotten_is_sound(with_models: Store) -> None:
    await with_models.writer.run(models.forget_optimiser, RUN, below_version=2)
    found = await with_models.reader.run(models.of_version, RUN, 1)
    assert found is not None
    assert found.optimiser_blobs == ()


def name(number: int) -> str:
    return f"{number:064x}"


async def test_a_name_is_spare_when_no_row_has_it(with_models: Store) -> None:
    asked = [name(number) for number in (1, 2, 101, 102, 200)]
    assert await with_models.reader.run(models.unnamed, asked) == {name(200)}
    await with_models.writer.run(models.forget_optimiser, RUN, below_version=2)
    assert await with_models.reader.run(models.unnamed, asked) == {name(101), name(200)}
    assert await with_models.reader.run(models.unnamed, [DIGEST]) == frozenset()


async def test_many_names_are_asked_in_pages(with_models: Store) -> None:
    asked = [name(number) for number in range(1500)]
    found = await with_models.reader.run(models.unnamed, asked)
    assert set(asked) - found == {name(number) for number in (0, 1, 2, 101, 102)}


async def test_of_a_run_in_work_the_newest_are_to_be_kept_and_the_first(with_models: Store) -> None:
    def kept(connection: Connection, keep: int) -> frozenset[str]:
        return models.to_keep(connection, keep=keep, ended_before=NOW)

    assert await with_models.reader.run(kept, 1) == {DIGEST, name(2), name(102)}
    assert await with_models.reader.run(kept, 2) == {DIGEST, *(name(number) for number in (1, 2, 101, 102))}


async def test_of_a_run_that_ended_long_ago_first_best_and_last_are_to_be_kept(with_models: Store) -> None:
    def end(connection: Connection) -> None:
        runs.set_best(connection, RUN, name(1), 0.5)
        runs.set_status(connection, RUN, "finished", finished_at=NOW)

    await with_models.writer.run(end)

    def kept(connection: Connection, ended_before: float) -> frozenset[str]:
        return models.to_keep(connection, keep=1, ended_before=ended_before)

    assert await with_models.reader.run(kept, NOW + 1) == {DIGEST, name(1), name(2)}
    assert await with_models.reader.run(kept, NOW - 1) == {DIGEST, name(1), name(2), name(102)}


async def test_of_a_run_that_ended_long_ago_the_mean_of_its_models_is_to_be_kept(with_models: Store) -> None:
    def end(connection: Connection) -> None:
        found = models.latest(connection, RUN)
        assert found is not None
        states = (*found.optimiser_blobs, (models.ITERATE_AVERAGE, name(300)))
        models.add(connection, replace(found, version=3, round=7, blob=name(3), optimiser_blobs=states))
        runs.set_status(connection, RUN, "finished", finished_at=NOW)

    await with_models.writer.run(end)
    newest = await with_models.reader.run(models.latest, RUN)
    assert newest is not None
    assert newest.average_blob == name(300)
    kept = await with_models.reader.run(lambda connection: models.to_keep(connection, keep=1, ended_before=NOW + 1))
    assert kept == {DIGEST, name(3), name(300)}


async def test_the_best_model_is_no_surplus(with_models: Store) -> None:
    def surplus(connection: Connection) -> frozenset[str]:
        return models.surplus_blobs(connection, RUN, through_version=1)

    assert await with_models.reader.run(surplus) == {name(1)}
    await with_models.writer.run(runs.set_best, RUN, name(1), 0.5)
    assert await with_models.reader.run(surplus) == frozenset()
