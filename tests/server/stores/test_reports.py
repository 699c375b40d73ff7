import dataclasses

import pytest

from atoll.server.stores import Report, ReportConflictError, Store, reports
from tests.server.stores.samples import ALICE, BOB, DIGEST, NOW, OTHER_DIGEST, RUN, OpenStore

REPORT = Report(RUN, 0, 0, ALICE, DIGEST, "ab" * 16, 100, "main", NOW, "counted", 4096, 1.5, metrics=(("loss", 0.5),))


async def test_a_report_is_recorded_once(with_run: Store) -> None:
    first = await with_run.writer.run(reports.record, REPORT)
    assert (first.report, first.is_new) == (REPORT, True)
    resent = dataclasses.replace(REPORT, upload_id="cd" * 16, received_at=NOW + 9, disposition="dropped")
    again = await with_run.writer.run(reports.record, resent)
    assert (again.report, again.is_new) == (REPORT, False)
    assert await with_run.reader.run(reports.of_attempt, RUN, 0, 0) == (REPORT,)


@pytest.mark.parametrize(
    "other", [dataclasses.replace(REPORT, digest=OTHER_DIGEST), dataclasses.replace(REPORT, weight=99)]
)
async def test_another_report_under_the_same_key_is_refused(with_run: Store, other: Report) -> None:
    await with_run.writer.run(reports.record, REPORT)
    with pytest.raises(ReportConflictError, match=f"participant {ALICE} has reported.*weight 100 for round 1;"):
        await with_run.writer.run(reports.record, other)
    assert await with_run.reader.run(reports.get, RUN, 0, 0, ALICE) == REPORT


async def test_attempts_and_participants_are_apart(with_run: Store) -> None:
    others = [dataclasses.replace(REPORT, **change) for change in ({"attempt": 1}, {"round": 1}, {"participant": BOB})]
    for report in (REPORT, *others):
        assert (await with_run.writer.run(reports.record, report)).is_new
    assert await with_run.reader.run(reports.of_attempt, RUN, 0, 0) == (REPORT, others[2])
    assert await with_run.reader.run(reports.get, RUN, 5, 0, ALICE) is None


async def test_counted_reports_are_marked(with_run: Store) -> None:
    late = dataclasses.replace(REPORT, participant=BOB, attempt=1)
    for report in (REPORT, late):
        await with_run.writer.run(reports.record, report)
    await with_run.writer.run(reports.mark_counted, RUN, [(0, 1, BOB), (0, 0, BOB)], {(0, 1, BOB): 12.5})
    await with_run.writer.run(reports.mark_counted, RUN, [], {})
    counted = dataclasses.replace(late, counted=True, folded_at=12.5)
    assert await with_run.reader.run(reports.get, RUN, 0, 1, BOB) == counted
    assert await with_run.reader.run(reports.get, RUN, 0, 0, ALICE) == REPORT


def test_of_two_servers_that_record_at_once_one_is_new(with_run: Store, open_store: OpenStore) -> None:
    other = open_store(primary=False)
    for round_number in range(20):
        report = dataclasses.replace(REPORT, round=round_number)
        racing = [store.writer.submit(reports.record, report) for store in (with_run, other)]
        assert sorted(future.result().is_new for future in racing) == [False, True]


async def test_many_are_recorded_together_and_a_repetition_changes_nothing(with_run: Store) -> None:
    theirs = dataclasses.replace(REPORT, participant=BOB)
    await with_run.writer.run(reports.record_all, [REPORT, theirs])
    await with_run.writer.run(reports.record_all, [dataclasses.replace(theirs, received_at=NOW + 9), REPORT])
    assert await with_run.reader.run(reports.of_attempt, RUN, 0, 0) == (REPORT, theirs)
    with pytest.raises(ReportConflictError, match="now it sends"):
        await with_run.writer.run(reports.record_all, [dataclasses.replace(REPORT, weight=99), theirs])
