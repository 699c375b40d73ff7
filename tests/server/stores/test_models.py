import pytest

from atoll.server.stores import Model, RecordConflictError, Store, models
from tests.server.stores.samples import DIGEST, NOW, RUN


def _model(version: int, round_number: int | None) -> Model:
    name = f"{version:064x}"
    return Model(RUN, version, round_number, name, 10, NOW, (("momentum", f"{version + 100:064x}"),))


@pytest.fixture
def with_models(with_run: Store) -> Store:
    for model in (_model(0, None), _model(1, 0), _model(2, 2)):
        with_run.writer.submit(models.add, model).result()
    return with_run


async def test_they_are_found_by_version_and_by_round(with_models: Store) -> None:
    run = with_models.reader.run
    assert await run(models.latest, RUN) == _model(2, 2)
    assert await run(models.of_version, RUN, 0) == _model(0, None)
    assert await run(models.of_version, RUN, 3) is None
    assert await run(models.of_round, RUN, 0) == _model(1, 0)
    assert await run(models.of_round, RUN, 1) is None
    assert await run(models.listed, RUN) == (_model(0, None), _model(1, 0), _model(2, 2))


@pytest.mark.parametrize("model", [_model(2, 3), _model(3, 2)])
async def test_a_version_and_a_round_have_one_model(with_models: Store, model: Model) -> None:
    with pytest.raises(RecordConflictError):
        await with_models.writer.run(models.add, model)


async def test_what_is_named_is_kept(with_models: Store) -> None:
    named = {DIGEST, *(f"{number:064x}" for number in (0, 1, 2, 100, 101, 102))}
    assert await with_models.reader.run(models.referenced_blobs) == named
    await with_models.writer.run(models.forget_optimiser, RUN, below_version=2)
    assert await with_models.reader.run(models.referenced_blobs) == named - {f"{100:064x}", f"{101:064x}"}
