"""The number of times that each participant has taken part in a run, read once for any number of draws."""

import dataclasses
from collections.abc import Mapping

import pytest
from sqlalchemy import Connection

from atoll.server.runs.participations import Participations
from atoll.server.sampling import Participation
from atoll.server.stores import Store, participants, rounds, runs
from atoll.server.stores.rounds import Member
from tests.server.stores.samples import ALICE, BOB, RUN, attempt, participant, run


async def release(store: Store, number: int, *members: str) -> None:
    """A round that was abandoned once, then released with an update of each member."""

    def work(connection: Connection) -> None:
        for tried, phase in enumerate(("abandoned", "released")):
            rounds.put(connection, dataclasses.replace(attempt(number, tried), phase=phase))
            rounds.put_members(connection, [Member(RUN, number, tried, name, "reported") for name in members])

    await store.writer.run(work)


@pytest.fixture
def with_run(store: Store) -> Store:
    def fill(connection: Connection) -> None:
        runs.add(connection, run())
        for name in (ALICE, BOB):
            participants.add(connection, participant(name))

    store.writer.submit(fill).result()
    return store


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Member rows that each query has counted."""
    found: list[int] = []
    query = rounds.participations

    def counted(connection: Connection, run_id: str, *, since: int = 0) -> dict[str, tuple[int, int]]:
        answer = query(connection, run_id, since=since)
        found.append(sum(times for times, _ in answer.values()))
        return answer

    monkeypatch.setattr(rounds, "participations", counted)
    return found


async def test_each_row_is_read_once_between_two_starts(with_run: Store, read: list[int]) -> None:
    counted = Participations(with_run.reader)
    known: Mapping[str, Participation] = {}
    for number in range(20):
        await release(with_run, number, *((ALICE, BOB) if number % 2 else (ALICE,)))
        for _ in range(2):  # the next round's draw, and that of its second attempt
            known = await counted.before(RUN, number + 1)
    assert known == {ALICE: Participation(20, 19), BOB: Participation(10, 19)}
    assert read == [1, 2] * 10
    assert await Participations(with_run.reader).before(RUN, 20) == known


async def test_an_ended_run_is_forgotten(with_run: Store, read: list[int]) -> None:
    counted = Participations(with_run.reader)
    await release(with_run, 0, ALICE)
    for _ in range(2):
        assert await counted.before(RUN, 1) == {ALICE: Participation(1, 0)}
        counted.forget(RUN)
    assert read == [1, 1]
