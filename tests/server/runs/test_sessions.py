import asyncio
from typing import Any

import pytest

from atoll.server.errors import UnavailableError
from atoll.server.runs import session as module
from atoll.server.runs.return_spread import return_spread_s
from atoll.server.runs.session import OUTBOX_MESSAGES, ComeBack, Introduction, Membership, Session, come_back
from atoll.server.runs.sessions import COME_BACK_S, TAKEN_OVER_S, Sessions
from tests.patience import WAIT_S

HELLO = Introduction(examples=1, encodings=frozenset(), can_evaluate=False)

STOPPING = ComeBack.CAUSE_STOPPING


class Seen:
    """What listeners were told."""

    def __init__(self, sessions: Sessions) -> None:
        self.events: list[tuple[str, str]] = []
        sessions.listen(connected=self._note("came"), disconnected=self._note("went"))

    def _note(self, what: str) -> Any:
        return lambda session: self.events.append((what, session.participant))


def drained(session: Session) -> list[Any]:
    found = []
    while session.outbox:
        found.append(session.outbox.take())
    return found


async def test_connecting_and_disconnecting_are_reported() -> None:
    sessions = Sessions()
    seen = Seen(sessions)
    alice = sessions.connect("alice", HELLO, lambda: None)
    assert sessions.get("alice") is alice
    assert (len(sessions), sessions.all()) == (1, [alice])
    sessions.disconnect(alice)
    sessions.disconnect(alice)
    assert seen.events == [("came", "alice"), ("went", "alice")]
    assert sessions.get("alice") is None


async def test_a_newer_connection_takes_over() -> None:
    sessions = Sessions()
    seen = Seen(sessions)
    old = sessions.connect("alice", HELLO, lambda: None)
    new = sessions.connect("alice", HELLO, lambda: None)
    leave, end = drained(old)
    assert (leave.come_back.cause, leave.come_back.after_s) == (ComeBack.CAUSE_TAKEN_OVER, TAKEN_OVER_S)
    assert end is None
    sessions.disconnect(old)  # its stream ends only now
    assert sessions.get("alice") is new
    assert seen.events == [("came", "alice"), ("came", "alice")]


async def test_a_participant_that_does_not_keep_up_is_sent_away() -> None:
    session = Sessions().connect("alice", HELLO, lambda: None)
    sent = [session.send(come_back(STOPPING, float(number), "x")) for number in range(OUTBOX_MESSAGES + 1)]
    assert sent == [True] * OUTBOX_MESSAGES + [False]
    assert len(session.outbox) == OUTBOX_MESSAGES
    assert drained(session)[-1] is None


async def test_a_last_word_fits_in_a_full_outbox() -> None:
    session = Sessions().connect("alice", HELLO, lambda: None)
    for number in range(OUTBOX_MESSAGES):
        session.send(come_back(STOPPING, float(number), "x"))
    session.close(come_back(STOPPING, 99.0, "bye"))
    *_, word, end = drained(session)
    assert (word.come_back.after_s, end) == (99.0, None)


async def test_a_closed_stream_that_does_not_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CUT_S", 0.0)
    sessions, cut = Sessions(), asyncio.Event()
    sessions.connect("alice", HELLO, cut.set).close()
    await asyncio.wait_for(cut.wait(), WAIT_S)


async def test_a_closed_stream_that_ends_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CUT_S", 0.0)
    sessions, cut = Sessions(), asyncio.Event()
    session = sessions.connect("alice", HELLO, cut.set)
    session.close()
    session.close()
    sessions.disconnect(session)
    await asyncio.sleep(0.01)
    assert not cut.is_set()


async def test_a_change_during_a_look_is_not_missed() -> None:
    sessions = Sessions()
    with sessions.watch() as changes:
        assert changes.take() is None, "at first all participants are to be looked at"
        alice = sessions.connect("alice", HELLO, lambda: None)
        await asyncio.wait_for(changes.wait(), WAIT_S)
        sessions.disconnect(alice)
        sessions.touch({"bob"})
        assert changes.take() == {"alice", "bob"}
        assert changes.take() == set()
    sessions.touch({"carol"})
    assert changes.take() == set()


async def test_participants_are_found_by_id_and_by_organisation() -> None:
    sessions = Sessions()
    alice = sessions.connect("alice", HELLO, lambda: None, Membership("north"))
    bob = sessions.connect("bob", HELLO, lambda: None, Membership("north"))
    assert sessions.of("default").named("north") == [alice, bob]
    assert sessions.of("default").named("alice") == [alice]
    again = sessions.connect("alice", HELLO, lambda: None, Membership("north"))
    sessions.disconnect(alice)
    assert sessions.of("default").named("north") == [bob, again]
    sessions.disconnect(bob)
    sessions.disconnect(again)
    assert sessions.of("default").named("north") == []
    assert sessions.of("default").named("alice") == []


async def test_each_aggregators_participants_are_known_while_their_streams_end_there() -> None:
    sessions = Sessions()
    alice = sessions.connect("alice", HELLO, lambda: None, through="north")
    bob = sessions.connect("bob", HELLO, lambda: None, through="north")
    sessions.connect("carol", HELLO, lambda: None)
    assert set(sessions.through("north")) == {"alice", "bob"}
    assert not sessions.through("")
    assert not sessions.through("south")
    moved = sessions.connect("alice", HELLO, lambda: None, through="south")
    sessions.disconnect(alice)  # the stream that was replaced ends later
    assert set(sessions.through("north")) == {"bob"}
    assert set(sessions.through("south")) == {"alice"}
    sessions.disconnect(bob)
    sessions.disconnect(moved)
    assert not sessions.through("north")
    assert not sessions.through("south")


class TestLeaving:
    async def test_participants_are_sent_away_each_at_a_time_of_its_own(self) -> None:
        sessions = Sessions()
        there = [sessions.connect(f"p{number}", HELLO, lambda: None) for number in range(3)]
        sessions.leave()
        orders = [drained(session) for session in there]
        assert [(leave.come_back.cause, end) for leave, end in orders] == [(STOPPING, None)] * 3
        times = [leave.come_back.after_s for leave, _ in orders]
        assert times == [COME_BACK_S + return_spread_s(place) for place in range(3)]

    async def test_those_at_gateways_stay(self) -> None:
        sessions = Sessions()
        there = sessions.connect("alice", HELLO, lambda: None, through="gateway")
        sessions.leave()
        assert drained(there) == []

    async def test_more_are_refused_at_later_times(self) -> None:
        sessions = Sessions()
        sessions.connect("alice", HELLO, lambda: None)
        sessions.leave()
        times = []
        for name in ("bob", "carol"):
            with pytest.raises(UnavailableError, match="the server is stopping") as refused:
                sessions.connect(name, HELLO, lambda: None)
            assert refused.value.detail.code == "server.stopping"
            times.append(refused.value.detail.retry_after_s)
        assert times == [COME_BACK_S + return_spread_s(place) for place in (1, 2)]
