"""Participants without a stream, against a real gRPC server on loopback."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from atoll.client import UsageError
from atoll.client._connection.endpoint import Endpoint
from atoll.client._session.renewal import Renewal
from atoll.client._session.session import Session
from atoll.client._session.unary_check_in import JITTER, until_next_s
from atoll.client._transfer.calls import TransferCalls
from atoll.client.events import CheckedIn, Connected, Disconnected, Reported, Stopped
from atoll.wire.status import ErrorDetail, Fault, Recovery
from atoll.wire.v1 import participation_pb2 as part
from tests.client.conftest import Start
from tests.client.harness import FAST, AddOne, Federation, Gated, Run, running
from tests.patience import WAIT_S

ACCEPTED, FAILED = part.TaskReply.VERDICT_ACCEPTED, part.TaskReply.VERDICT_FAILED
CROWDED = ErrorDetail("checkin.crowded", Fault.SERVER, "too many", retry_after_s=4.0, recovery=Recovery.REPEAT)
AT_ONCE = dataclasses.replace(FAST, hold_s=0.0)
"""A participant that the server may not hold: it is answered at once."""


async def next_call(server: Federation) -> part.CheckInOnceRequest:
    return await asyncio.wait_for(server.unary.get(), WAIT_S)


def unary(start: Start, participant: AddOne, **options: object) -> Run:
    return start(participant, check_in="unary", **options)


class TestTask:
    async def test_a_held_call_brings_a_task_whose_answer_needs_no_other_connection(
        self, server: Federation, start: Start
    ) -> None:
        run = unary(start, AddOne())
        first = await next_call(server)
        assert first.wait_s == FAST.hold_s
        assert first.hello.examples == 7
        server.invite()
        second = await next_call(server)
        assert [reply.verdict for reply in second.replies] == [ACCEPTED]
        assert second.wait_s == 0.0
        assert [key.run for key in second.hello.resuming] == ["r1"]
        assert (await server.report()).weight == 7
        await run.saw(Reported)
        assert len(run.of(Connected)) == 1

    async def test_it_returns_when_its_task_is_done_if_the_server_says_so(
        self, server: Federation, start: Start
    ) -> None:
        server.return_after_s, server.return_when_done = 1e6, True
        run = unary(start, AddOne())
        server.invite()
        await run.saw(Reported)
        for _ in range(2):  # the invitation, and the answer to it
            await next_call(server)
        assert not (await next_call(server)).hello.resuming

    async def test_it_returns_too_if_its_task_is_done_before_the_answer_comes(
        self, server: Federation, start: Start
    ) -> None:
        server.return_after_s, server.return_when_done = 1e6, True
        server.faults.hold_check_in = asyncio.Event()
        run = unary(start, AddOne())
        server.invite()
        await run.saw(Reported)
        server.faults.hold_check_in.set()
        for _ in range(2):
            await next_call(server)
        assert not (await next_call(server)).hello.resuming

    async def test_it_returns_too_if_its_task_is_done_while_its_certificate_is_renewed(
        self, server: Federation, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its answer to the invitation is sent after the task."""
        server.return_after_s, server.return_when_done = 1e6, True
        runs: list[Run] = []

        async def renew(*_: object) -> None:
            await runs[0].saw(Reported)

        monkeypatch.setattr(Renewal, "renew", renew)
        monkeypatch.setattr(Renewal, "due_in_s", lambda *_: float(bool(runs[0].of(Reported))))
        server.invite()
        runs.append(unary(start, AddOne()))
        for _ in range(3):  # the third is the return
            await next_call(server)

    async def test_work_that_is_no_longer_wanted_ends_with_the_next_check_in(
        self, server: Federation, start: Start
    ) -> None:
        trainer = Gated()
        server.return_after_s = 0.05
        run = unary(start, trainer, limits=AT_ONCE)
        server.invite()
        await trainer.training()
        server.stop()
        await run.saw(Stopped)

    async def test_an_abandoned_task_is_reported_before_the_session_ends(
        self, server: Federation, start: Start
    ) -> None:
        trainer = Gated()
        run = unary(start, trainer)
        server.invite()
        await trainer.training()
        await run.stop()
        verdicts = [(await server.reply()).verdict for _ in range(2)]
        assert verdicts == [ACCEPTED, FAILED]

    async def test_the_connection_for_transfers_is_closed_after_a_task(
        self, server: Federation, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its keep-alive would hold it open until the session ends."""
        closed: list[TransferCalls] = []
        close = TransferCalls.close

        def noted(calls: TransferCalls) -> None:
            closed.append(calls)
            close(calls)

        monkeypatch.setattr(TransferCalls, "close", noted)
        server.return_after_s, server.return_when_done = 1e6, True
        unary(start, AddOne())
        for number in (0, 1):
            server.invite(number)
            await server.report()
            for _ in range(2):
                await next_call(server)
        await next_call(server)
        assert len(set(map(id, closed))) == 2


class TestTimes:
    async def test_it_sleeps_until_the_time_that_the_server_says(self, server: Federation, start: Start) -> None:
        server.return_after_s = 1e6
        run = unary(start, AddOne(), limits=dataclasses.replace(AT_ONCE, return_after_cap_s=500.0))
        (found,) = await run.saw(CheckedIn)
        assert 500.0 <= found.next_in_s <= 500.0 * (1 + JITTER)
        assert server.unary.qsize() == 1

    async def test_it_checks_in_again_and_again(self, server: Federation, start: Start) -> None:
        server.return_after_s = 0.01
        run = unary(start, AddOne(), limits=AT_ONCE)
        await run.saw(CheckedIn, times=3)
        assert len(run.of(Connected)) == 1

    def test_participants_with_the_same_interval_return_at_different_moments(self) -> None:
        assert until_next_s(100.0, 0.0) == 100.0
        assert 100.0 < until_next_s(100.0, 0.5) < until_next_s(100.0, 0.99) <= 105.0

    async def test_a_session_that_ends_while_the_server_holds_its_call_waits_for_nothing(
        self, server: Federation, start: Start
    ) -> None:
        run = unary(start, AddOne())
        await next_call(server)
        await run.stop()
        assert not run.of(Disconnected)


class TestOutages:
    async def test_it_survives_a_server_that_is_away(self, server: Federation, start: Start) -> None:
        server.return_after_s = 0.01
        run = unary(start, AddOne(), limits=AT_ONCE)
        await run.saw(CheckedIn)
        await server.kill()
        await run.saw(Disconnected)
        await server.start()
        await run.saw(Connected, times=2)
        server.invite()
        await run.saw(Reported)

    async def test_answers_that_could_not_be_sent_are_sent_later(self, server: Federation, start: Start) -> None:
        run = unary(start, AddOne())
        await next_call(server)
        server.faults.bar = dataclasses.replace(CROWDED, retry_after_s=0.01)
        server.invite()
        await run.saw(Disconnected)
        assert server.replies.empty()
        server.faults.bar = None
        assert (await server.reply()).verdict == ACCEPTED

    async def test_a_refusal_says_when_to_return_and_nothing_else_does(self, server: Federation, start: Start) -> None:
        """The spread of the last welcome does not apply: it was sent before the outage."""
        server.return_after_s, server.return_spread_s = 0.01, 1e6
        run = unary(start, AddOne(), limits=AT_ONCE)
        await run.saw(CheckedIn)
        server.faults.bar = CROWDED
        (put_off,) = await run.saw(Disconnected)
        assert 4.0 <= put_off.retry_in_s <= 1.25 * 4.0


async def test_an_unknown_way_to_check_in_is_refused(server: Federation, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="check_in is 'push'; it is one of: stream, unary"):
        Session(AddOne(), Endpoint(server.address, None, "p1"), tmp_path, check_in="push")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        running(server, AddOne(), tmp_path, check_in="")
