"""Participants without a stream: a call brings a task, or the time to return."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atoll.server.config.check_in_settings import CheckInSettings
from atoll.server.config.limits import Limits
from atoll.server.rpc import return_gate, unary_check_in
from atoll.server.rpc.fair_bucket import FairBucket
from atoll.server.runs.coordinator import Coordinator
from atoll.server.runs.project_pace import SOONEST_S
from atoll.server.runs.session import ComeBack
from atoll.wire.encoding import Encoding
from atoll.wire.v1 import control_pb2, participation_pb2, tensors_pb2
from tests.patience import WAIT_S
from tests.server.rpc.test_participation import ACCEPTED, DECLINED, standing
from tests.server.rpc.world import Participant, World, job, refused_detail, update_values

LONG_S = 300.0
"""Longer than any test: a call that is held for so long is answered because something happened."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    check_in = CheckInSettings(hold_s=LONG_S, period_s=LONG_S, longest_s=LONG_S)
    async with World(tmp_path / "data", check_in=check_in, silence_s=0.0) as opened:
        yield opened


def answer(key: participation_pb2.RoundKey, verdict: int, reason: str = "") -> participation_pb2.TaskReply:
    return participation_pb2.TaskReply(
        key=key, verdict=participation_pb2.TaskReply.Verdict.ValueType(verdict), reason=reason
    )


def visit(
    who: Participant,
    *replies: participation_pb2.TaskReply,
    wait_s: float = LONG_S,
    examples: int = 10,
    resuming: Any = (),
    **hello: Any,
) -> Any:
    """Start a unary check-in."""
    encodings = [tensors_pb2.Encoding.ValueType(item) for item in Encoding]
    greeting = participation_pb2.Hello(protocol=1, examples=examples, encodings=encodings, resuming=resuming, **hello)
    request = participation_pb2.CheckInOnceRequest(hello=greeting, replies=replies, wait_s=wait_s)
    return who.participation.CheckInOnce(request, timeout=WAIT_S)


async def held(world: World, *whom: Participant) -> None:
    """Wait until these participants wait in their calls."""
    async with asyncio.timeout(WAIT_S):
        with world.daemon._sessions.watch(takes_unary=False) as changes:
            while any(world.daemon._sessions.get(who.name) is None for who in whom):
                changes.take()
                await changes.wait()


def only(response: participation_pb2.CheckInOnceResponse, kind: str) -> Any:
    (found,) = response.instructions
    assert found.WhichOneof("message") == kind
    return getattr(found, kind)


class TestWithoutARun:
    async def test_it_is_answered_at_once_with_a_time_to_return(self, world: World, alice: Participant) -> None:
        found = await visit(alice)
        assert found.welcome.participant == alice.name
        assert found.welcome.chunk_bytes > 0
        assert not found.instructions
        assert 0.0 < found.return_after_s <= 1.5 * LONG_S
        assert world.daemon._sessions.get(alice.name) is None
        assert world.daemon._sessions.pace.population == 1

    async def test_what_it_declares_is_on_record(self, world: World, alice: Participant) -> None:
        await visit(alice, examples=3, labels={"model": "x"})
        await visit(alice, examples=4, labels={"model": "x"})
        (listed,) = (
            await world.operator.control.ListParticipants(control_pb2.ListParticipantsRequest(limit=9), timeout=WAIT_S)
        ).participants
        assert (listed.examples, dict(listed.labels)) == (4, {"model": "x"})

    async def test_it_need_not_wait(self, world: World, alice: Participant) -> None:
        await world.submit()
        assert not (await visit(alice, wait_s=0.0)).instructions
        assert not (await visit(alice, wait_s=float("nan"))).instructions


class TestTask:
    async def test_a_run_draws_those_that_wait_in_their_calls(
        self, world: World, alice: Participant, bob: Participant
    ) -> None:
        run = await world.submit(job(size=2))
        first = asyncio.ensure_future(visit(alice))
        await held(world, alice)
        second = asyncio.ensure_future(visit(bob))
        for who, call in ((alice, first), (bob, second)):
            task = only(await call, "participate")
            assert not (await visit(who, answer(task.key, ACCEPTED), resuming=[task.key])).instructions
            await who.report(task.key, update_values(1))
        assert (await world.until(run, "finished")).round.reported == 2

    async def test_a_member_at_work_is_not_missed(self, world: World, alice: Participant) -> None:
        """silence_s is 0: a member with a stream that disconnects is silent at once, and the round would continue."""
        run = await world.submit(job(size=1))
        task = only(await visit(alice), "participate")
        bob = await world.participant()
        async with bob.check_in():
            pass
        assert (await standing(world, run))[alice.name][0] == "invited"
        await alice.report(task.key, update_values(1))
        await world.until(run, "finished")

    async def test_one_that_never_got_its_task_is_given_it_again(self, world: World, alice: Participant) -> None:
        await world.submit(job(size=1))
        lost = only(await visit(alice), "participate")
        assert only(await visit(alice), "participate").key == lost.key
        assert not (await visit(alice, resuming=[lost.key])).instructions

    async def test_answers_reach_the_round(self, world: World, alice: Participant) -> None:
        run = await world.submit(job(size=1, straggler="max_attempts = 1"))
        task = only(await visit(alice), "participate")
        await visit(alice, answer(task.key, DECLINED, "battery low"), wait_s=0.0)
        await world.until(run, "failed")
        assert (await standing(world, run))[alice.name] == ("declined", "battery low")

    async def test_work_on_a_round_that_is_over_is_stopped(self, world: World, alice: Participant) -> None:
        run = await world.submit(job(size=1))
        task = only(await visit(alice), "participate")
        await world.operator.control.CancelRun(control_pb2.CancelRunRequest(run=run), timeout=WAIT_S)
        assert only(await visit(alice, resuming=[task.key]), "stop").key == task.key

    async def test_one_that_is_drawn_when_its_time_is_over_waits_for_its_invitation(
        self, world: World, alice: Participant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected: list[str] = []
        time_is_over = asyncio.Event()

        def expects(_: object, participant: str) -> bool:
            expected.append(participant)
            if len(expected) > 1:  # the first question is that of the gate
                time_is_over.set()
            return time_is_over.is_set()

        monkeypatch.setattr(Coordinator, "expects", expects)
        monkeypatch.setattr(unary_check_in, "INVITE_S", WAIT_S)
        await world.submit(job(size=2))
        call = asyncio.ensure_future(visit(alice, wait_s=0.05))
        await asyncio.wait_for(time_is_over.wait(), WAIT_S)
        bob = await world.participant()
        async with bob.check_in():
            only(await call, "participate")


class TestEnd:
    async def test_a_newer_call_takes_over(self, world: World, alice: Participant) -> None:
        await world.submit(job(size=2))
        first = asyncio.ensure_future(visit(alice))
        await held(world, alice)
        second = asyncio.ensure_future(visit(alice))
        order = only(await first, "come_back")
        assert order.cause == ComeBack.CAUSE_TAKEN_OVER
        assert (await first).return_after_s == order.after_s
        bob = await world.participant()
        async with bob.check_in():
            only(await second, "participate")

    async def test_a_revoked_participant_is_cut_off(self, world: World, alice: Participant) -> None:
        await world.submit(job(size=2))
        call = asyncio.ensure_future(visit(alice))
        await held(world, alice)
        await world.operator.control.RevokeParticipant(
            control_pb2.RevokeParticipantRequest(participant=alice.name), timeout=WAIT_S
        )
        assert (await refused_detail(call)).code == "certificate.revoked"

    async def test_one_that_hangs_up_is_not_drawn(self, world: World, alice: Participant) -> None:
        await world.submit(job(size=2))
        call = asyncio.ensure_future(visit(alice))
        await held(world, alice)
        call.cancel()
        async with asyncio.timeout(WAIT_S):
            with world.daemon._sessions.watch(takes_unary=False) as changes:
                while world.daemon._sessions.get(alice.name) is not None:
                    changes.take()
                    await changes.wait()


class TestRefusals:
    async def test_too_many_answers_are_refused(self, alice: Participant) -> None:
        replies = [answer(participation_pb2.RoundKey(run="rzzzzzzzzzzzz"), ACCEPTED)] * 17
        assert (await refused_detail(visit(alice, *replies))).code == "checkin.replies"

    async def test_a_participant_that_comes_too_often_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("atoll.server.rpc.admission.PUT_OFF_S", 0.0)
        async with World(tmp_path / "data", limits=Limits(check_ins_per_minute=1)) as world:
            alice = await world.participant()
            await visit(alice)
            assert (await refused_detail(visit(alice))).code == "checkin.rate"

    async def test_more_than_the_server_takes_are_told_when_to_return(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Crowded(FairBucket):
            now = False

            def take(self, who: str, now: float) -> bool:
                return not Crowded.now and super().take(who, now)

        monkeypatch.setattr(return_gate, "FairBucket", Crowded)
        async with World(tmp_path / "data", check_in=CheckInSettings(hold_s=LONG_S)) as world:
            alice, bob = await world.participant(), await world.participant()
            await world.submit(job(size=1))
            task = only(await visit(alice), "participate")
            Crowded.now = True
            for refused in (visit(bob), bob.participation.CheckIn().read()):
                found = await refused_detail(refused)
                assert found.code == "checkin.crowded"
                assert found.retry_after_s is not None
                assert found.retry_after_s >= SOONEST_S
            assert world.daemon._sessions.pace.population >= 1
            assert not (await visit(alice, resuming=[task.key])).instructions, "a round waits for this one"
