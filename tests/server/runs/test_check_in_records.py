import asyncio
from typing import Any

import pytest

from atoll.server.runs import check_in_records
from atoll.server.runs.check_in_records import CheckInRecords
from atoll.server.runs.session import Introduction
from atoll.server.stores import participants
from tests.patience import WAIT_S
from tests.server.runs.federation import Federation

PHONE = Introduction(examples=3, encodings=frozenset(), can_evaluate=False, unary=True)


async def row(federation: Federation, name: str) -> participants.Participant:
    found = await federation.store.reader.run(participants.get, name)
    assert found is not None
    return found


async def test_what_is_known_is_not_stored_again_but_its_time_is(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction stores all check-ins of some seconds, instead of one for each."""
    monkeypatch.setattr(check_in_records, "TOGETHER_S", 0.0)
    stored = asyncio.Event()
    names = [(await federation.client(name)).name for name in ("a", "b")]
    records = CheckInRecords(federation.services)
    first = [await records.record(name, PHONE) for name in names]
    before = (await row(federation, names[0])).last_seen_at
    written: list[int] = []
    seen = participants.seen

    def counted(connection: Any, *, at: dict[str, float]) -> None:
        seen(connection, at=at)
        written.append(len(at))
        loop.call_soon_threadsafe(stored.set)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(participants, "seen", counted)
    for _ in range(3):
        assert [records.known(name, PHONE) for name in names] == first
    await asyncio.wait_for(stored.wait(), WAIT_S)
    assert written == [2]
    await federation.store.writer.run(lambda _: None)  # the transaction before it is durable
    after = (await row(federation, names[0])).last_seen_at
    assert before is not None
    assert after is not None
    assert after > before


async def test_what_is_new_is_stored_at_once(federation: Federation) -> None:
    name = (await federation.client("a")).name
    records = CheckInRecords(federation.services)
    assert records.known(name, PHONE) is None
    await records.record(name, PHONE)
    changed = Introduction(examples=4, encodings=frozenset(), can_evaluate=False, unary=True)
    assert records.known(name, changed) is None
    assert records.known(name, Introduction(3, frozenset(), can_evaluate=False)) is None, (
        "a stream is recorded each time"
    )


async def test_only_so_many_are_known(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_in_records, "KEPT", 1)
    names = [(await federation.client(name)).name for name in ("a", "b")]
    records = CheckInRecords(federation.services)
    for name in names:
        await records.record(name, PHONE)
    assert records.known(names[0], PHONE) is None
    assert records.known(names[1], PHONE) is not None
    records.stop()
