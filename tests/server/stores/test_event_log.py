import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, update

from atoll.server.stores import LoggedEvent, RecordConflictError, Store, StoreDamagedError, event_log, runs
from atoll.server.stores.schema import events as table
from tests.properties import examples
from tests.server.stores.samples import NOW, RUN, events, run


@pytest.fixture
def with_events(with_run: Store) -> Store:
    with_run.writer.submit(event_log.append, RUN, events(0, 2500)).result()
    return with_run


async def test_events_come_back_in_order_page_by_page(with_events: Store) -> None:
    assert await with_events.reader.run(event_log.read, RUN) == tuple(events(0, 1000))
    assert await with_events.reader.run(event_log.read, RUN, start=2498) == tuple(events(2498, 2))
    assert await with_events.reader.run(lambda c: list(event_log.replay(c, RUN))) == events(0, 2500)
    assert await with_events.reader.run(event_log.next_seq, RUN) == 2500


async def test_a_run_without_events(with_run: Store) -> None:
    assert await with_run.reader.run(event_log.next_seq, RUN) == 0
    assert await with_run.reader.run(lambda c: list(event_log.replay(c, RUN))) == []
    await with_run.writer.run(event_log.append, RUN, [])


async def test_two_that_drive_one_run_are_found_out(with_events: Store) -> None:
    with pytest.raises(RecordConflictError, match="event 2499 is already in the log, which goes on at 2500") as found:
        await with_events.writer.run(event_log.append, RUN, events(2499, 2))
    assert "only one server" in found.value.detail.remedy
    assert await with_events.reader.run(event_log.next_seq, RUN) == 2500


@pytest.mark.parametrize("batch", [events(2501, 1), [*events(2500, 1), *events(2502, 1)]])
async def test_gaps_are_refused(with_events: Store, batch: list[LoggedEvent]) -> None:
    with pytest.raises(ValueError, match="do not continue at 2500"):
        await with_events.writer.run(event_log.append, RUN, batch)


async def test_logs_of_runs_are_apart(with_events: Store) -> None:
    await with_events.writer.run(runs.add, run("rother"))
    await with_events.writer.run(event_log.append, "rother", events(0, 1))
    assert await with_events.reader.run(event_log.read, "rother") == tuple(events(0, 1))


@pytest.mark.parametrize("change", [{"body": '{"n":8}'}, {"kind": "Stopped"}, {"at": NOW}])
async def test_a_changed_event_is_found(with_events: Store, change: dict[str, object]) -> None:
    this = table.c.seq == 7
    await with_events.writer.run(lambda c: c.execute(update(table).where(this).values(change)))
    with pytest.raises(StoreDamagedError, match="event 7 of the log was changed"):
        await with_events.reader.run(event_log.read, RUN)


async def test_a_missing_event_is_found(with_events: Store) -> None:
    await with_events.writer.run(lambda c: c.execute(delete(table).where(table.c.seq == 7)))
    with pytest.raises(StoreDamagedError, match="event 7 is missing"):
        await with_events.reader.run(lambda c: list(event_log.replay(c, RUN)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(30), deadline=None)
@given(
    at=st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False),
    body=st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])),
)
def test_any_time_and_text_survives(with_run: Store, at: float, body: str) -> None:
    seq = with_run.reader.submit(event_log.next_seq, RUN).result()
    event = LoggedEvent(seq, at, "Started", body)
    with_run.writer.submit(event_log.append, RUN, [event]).result()
    assert with_run.reader.submit(event_log.read, RUN, start=seq).result() == (event,)
