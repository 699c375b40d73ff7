import pytest

from atoll.server.stores import ParticipantHistory, RecordConflictError, Store, history
from atoll.server.stores.history import HOURS, REPORTS_KEPT
from tests.server.stores.samples import ALICE, BOB, NOW

FULL = ParticipantHistory(ALICE, NOW, tuple(float(hour) / 3 for hour in range(HOURS)), (1.5, 2.25), 7, 5, NOW - 1)


async def test_histories_come_back_and_are_written_again(with_run: Store) -> None:
    await with_run.writer.run(history.put, [ParticipantHistory(ALICE, NOW - 5)])
    await with_run.writer.run(history.put, [FULL, ParticipantHistory(BOB, NOW)])
    found = await with_run.reader.run(history.of, [BOB, ALICE, "pother"])
    assert found == {ALICE: FULL, BOB: ParticipantHistory(BOB, NOW)}
    assert await with_run.reader.run(history.of, []) == {}


async def test_more_names_than_a_statement_takes(with_run: Store) -> None:
    await with_run.writer.run(history.put, [FULL])
    names = [ALICE, *(f"q{number}" for number in range(1500))]
    assert await with_run.reader.run(history.of, names) == {ALICE: FULL}


async def test_a_history_needs_its_participant(with_run: Store) -> None:
    with pytest.raises(RecordConflictError):
        await with_run.writer.run(history.put, [ParticipantHistory("pother", NOW)])


def test_memory_is_bounded() -> None:
    with pytest.raises(ValueError, match="expected 24 and at most 16"):
        ParticipantHistory(ALICE, NOW, report_s=(1.0,) * (REPORTS_KEPT + 1))
    with pytest.raises(ValueError, match="23 online hours"):
        ParticipantHistory(ALICE, NOW, online_s=(0.0,) * 23)
