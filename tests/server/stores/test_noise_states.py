import pytest
from sqlalchemy import text

from atoll.server.stores import (
    NoiseRecord,
    RecordConflictError,
    RecordMissingError,
    Store,
    StoreDamagedError,
    noise_states,
)
from tests.server.stores.samples import RUN

FIRST = NoiseRecord(RUN, 0, '{"secret":"first"}')
SECOND = NoiseRecord(RUN, 1, '{"secret":"second"}')


@pytest.fixture
def private(with_run: Store) -> Store:
    with_run.writer.submit(noise_states.add, FIRST).result()
    return with_run


async def test_the_next_takes_the_place_of_the_last(private: Store) -> None:
    assert await private.reader.run(noise_states.find, RUN) == FIRST
    await private.writer.run(noise_states.advance, SECOND)
    assert await private.reader.run(noise_states.find, RUN) == SECOND
    rows = await private.reader.run(lambda connection: connection.execute(text("SELECT * FROM noise_states")).all())
    assert "first" not in str(rows)


@pytest.mark.parametrize("version", [0, 2])
async def test_no_version_is_skipped_or_taken_again(private: Store, version: int) -> None:
    with pytest.raises(RecordConflictError, match=f"stands at version 0; it cannot become {version}"):
        await private.writer.run(noise_states.advance, NoiseRecord(RUN, version, "{}"))
    assert await private.reader.run(noise_states.find, RUN) == FIRST


async def test_a_run_without_privacy_has_none(with_run: Store) -> None:
    assert await with_run.reader.run(noise_states.find, RUN) is None
    with pytest.raises(RecordMissingError, match="there is no noise"):
        await with_run.writer.run(noise_states.advance, SECOND)


async def test_a_changed_state_is_found(private: Store) -> None:
    await private.writer.run(lambda connection: connection.execute(text("UPDATE noise_states SET body = '{}'")))
    with pytest.raises(StoreDamagedError, match=f"the noise of run {RUN} was changed on disk"):
        await private.reader.run(noise_states.find, RUN)


def test_secrets_are_not_shown() -> None:
    assert "first" not in repr(FIRST)
