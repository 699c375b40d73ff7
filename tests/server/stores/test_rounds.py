import dataclasses

import pytest

from atoll.server.stores import Member, RecordConflictError, Store, rounds
from tests.server.stores.samples import ALICE, BOB, DIGEST, NOW, RUN, attempt

FULL = dataclasses.replace(
    attempt(0, 1),
    phase="released",
    reason="goal reached",
    sampler="uniform",
    seed=2**63 - 1,
    eligible=8,
    cohort=2,
    reported=2,
    total_weight=2**61,
    opened_at=NOW + 1,
    deadline_at=NOW + 61.5,
    closed_at=NOW + 2.25,
    model=DIGEST,
    metrics=(("loss", 0.1), ("accuracy", 1.0)),
    durations_s=(("open", 1.25),),
)


async def test_attempts_come_back_in_order(with_run: Store) -> None:
    for record in (attempt(1), FULL, attempt(0, 0)):
        await with_run.writer.run(rounds.put, record)
    assert await with_run.reader.run(rounds.newest, RUN, limit=9) == (attempt(0, 0), FULL, attempt(1))
    assert await with_run.reader.run(rounds.get, RUN, 0, 1) == FULL
    assert await with_run.reader.run(rounds.get, RUN, 9, 0) is None


async def test_an_attempt_is_written_again(with_run: Store) -> None:
    await with_run.writer.run(rounds.put, attempt(0, 1))
    await with_run.writer.run(rounds.put, FULL)
    assert await with_run.reader.run(rounds.newest, RUN, limit=9) == (FULL,)


async def test_members_are_kept_with_their_reasons(with_run: Store) -> None:
    reported = Member(RUN, 0, 0, ALICE, "reported", "", 10, 9, 4096, NOW, NOW + 1, NOW + 1.5, NOW + 2)
    reported = dataclasses.replace(
        reported, folded_at=NOW + 3, ended_at=NOW + 2, claimed_s=(("fit", 0.5),), metrics=(("loss", 0.5),)
    )
    declined = Member(RUN, 0, 0, BOB, "declined", "on battery", declared_weight=7)
    await with_run.writer.run(rounds.put, attempt())
    await with_run.writer.run(rounds.put_members, [dataclasses.replace(reported, status="invited")])
    await with_run.writer.run(rounds.put_members, [reported, declined])
    await with_run.writer.run(rounds.put_members, [])
    assert await with_run.reader.run(rounds.members_of, RUN, 0, 0) == (reported, declined)
    assert await with_run.reader.run(rounds.members_of, RUN, 0, 1) == ()


async def test_the_newest_attempts_are_read_and_no_more(with_run: Store) -> None:
    for number, tried in ((0, 0), (0, 1), (1, 0), (2, 0)):
        await with_run.writer.run(rounds.put, attempt(number, tried))

    async def read(**asked: int) -> list[tuple[int, int]]:
        found = await with_run.reader.run(rounds.newest, RUN, **({"limit": 9} | asked))
        return [(row.round, row.attempt) for row in found]

    assert await read(limit=2) == [(1, 0), (2, 0)]
    assert await read(since=1) == [(1, 0), (2, 0)]
    assert await read(only=0) == [(0, 0), (0, 1)]


async def test_participations_are_the_released_rounds_that_an_update_was_sent_for(with_run: Store) -> None:
    released = {(0, 0): "released", (3, 0): "abandoned", (3, 1): "released", (4, 0): "open", (5, 0): "released"}
    for (number, tried), phase in released.items():
        kind = "evaluate" if number == 5 else "train"
        await with_run.writer.run(rounds.put, dataclasses.replace(attempt(number, tried), phase=phase, kind=kind))
    members = [Member(RUN, number, tried, ALICE, "reported") for number, tried in released]
    members += [Member(RUN, 0, 0, BOB, "rejected", "not finite"), Member(RUN, 3, 1, BOB, "timed_out")]
    await with_run.writer.run(rounds.put_members, members)
    assert await with_run.reader.run(rounds.participations, RUN) == {ALICE: (2, 3), BOB: (1, 0)}
    assert await with_run.reader.run(rounds.participations, RUN, since=1) == {ALICE: (1, 3)}
    assert await with_run.reader.run(rounds.participations, "another-run") == {}


@pytest.mark.parametrize("stranger", [Member(RUN, 3, 0, ALICE, "invited"), Member(RUN, 0, 0, "pother", "invited")])
async def test_members_need_their_attempt_and_participant(with_run: Store, stranger: Member) -> None:
    await with_run.writer.run(rounds.put, attempt())
    with pytest.raises(RecordConflictError):
        await with_run.writer.run(rounds.put_members, [stranger])


async def test_the_status_of_a_member_is_amended(with_run: Store) -> None:
    member = Member(RUN, 0, 0, ALICE, "late", "after the deadline", weight=9)
    await with_run.writer.run(rounds.put, attempt())
    await with_run.writer.run(rounds.put_members, [member])
    for name in (ALICE, BOB):
        await with_run.writer.run(
            rounds.amend_member, RUN, (0, 0), name, status="reported", detail="counted in round 1"
        )
    amended = dataclasses.replace(member, status="reported", detail="counted in round 1")
    assert await with_run.reader.run(rounds.members_of, RUN, 0, 0) == (amended,)
