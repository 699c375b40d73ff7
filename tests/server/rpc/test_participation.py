import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import atoll.server
from atoll.server.access.certificates import CertificateBook
from atoll.server.process import ports
from atoll.server.process.listeners import Port, make_server
from atoll.server.rpc import introductions, participation
from atoll.server.runs import session as module
from atoll.server.runs.session import ComeBack, come_back
from atoll.server.runs.sessions import TAKEN_OVER_S
from atoll.wire.digest import DEFAULT_CHUNK_BYTES
from atoll.wire.encoding import Encoding
from atoll.wire.messages import PROTOCOL, layout_from_proto
from atoll.wire.pacing import PING_S
from atoll.wire.v1 import control_pb2, participation_pb2
from tests.patience import WAIT_S, kept
from tests.server.rpc.world import LAYOUT, Participant, Stream, World, job, refused_code, update_values

ACCEPTED = participation_pb2.TaskReply.VERDICT_ACCEPTED
DECLINED = participation_pb2.TaskReply.VERDICT_DECLINED
FAILED = participation_pb2.TaskReply.VERDICT_FAILED


async def greeting(participant: Participant, **hello: Any) -> tuple[str, str]:
    """The refusal of a hello; greets again if gRPC's client fails because the refusal arrived while it was writing."""
    fields: dict[str, Any] = {"protocol": 1, "examples": 1} | hello
    message = participation_pb2.CheckInRequest(hello=participation_pb2.Hello(**fields))
    async with asyncio.timeout(WAIT_S):
        while True:
            call = participant.participation.CheckIn()
            try:
                await call.write(message)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.INTERNAL:
                    raise
            else:
                return await refused_code(call.read())


async def standing(world: World, run: str) -> dict[str, tuple[str, str]]:
    """Status and detail of each member of the newest round."""
    answer = await world.operator.control.GetRun(control_pb2.GetRunRequest(run=run, members=True), timeout=WAIT_S)
    return {member.participant: (member.status, member.detail) for member in answer.rounds[-1].members}


async def test_open_streams_are_counted(world: World, alice: Participant) -> None:
    meter = world.daemon._figures.meter
    async with alice.check_in():
        assert meter.check_ins_open == 1
    async with asyncio.timeout(WAIT_S):
        while meter.check_ins_open:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)


class TestHello:
    async def test_the_welcome_says_what_a_participant_needs(self, alice: Participant) -> None:
        stream = Stream(alice.participation.CheckIn())
        await stream.write(participation_pb2.CheckInRequest(hello=participation_pb2.Hello(protocol=1)))
        welcome = await stream.next("welcome")
        assert welcome.participant == alice.name
        assert welcome.protocol == PROTOCOL
        assert welcome.server_version == atoll.server.__version__
        assert welcome.transfer_address == ""
        assert welcome.chunk_bytes == DEFAULT_CHUNK_BYTES
        assert 80_000 < welcome.certificate_remaining_s <= 86_400
        stream.call.cancel()

    async def test_the_interval_of_pings_is_that_of_the_port(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: list[tuple[Port, float]] = []

        def noted(port: Port, *arguments: Any, **more: Any) -> grpc.aio.Server:
            made.append((port, more.get("ping_s", PING_S)))
            return make_server(port, *arguments, **more)

        monkeypatch.setattr(ports, "make_server", noted)
        async with World(tmp_path / "other", ping_s=40.0) as world:
            participant = await world.participant()
            stream = Stream(participant.participation.CheckIn())
            await stream.write(participation_pb2.CheckInRequest(hello=participation_pb2.Hello(protocol=1)))
            assert (await stream.next("welcome")).ping_s == 40.0
            stream.call.cancel()
        assert made == [(Port.MAIN, 40.0), (Port.ENROLMENT, PING_S)]

    async def test_what_it_says_of_itself_is_kept(self, world: World, alice: Participant) -> None:
        request = control_pb2.ListParticipantsRequest()
        async with alice.check_in(examples=123, labels={"site": "north"}):
            listed = await world.operator.control.ListParticipants(request, timeout=WAIT_S)
            again = await world.operator.control.ListParticipants(request, timeout=WAIT_S)
        (row,), (later,) = listed.participants, again.participants
        assert (row.examples, dict(row.labels), row.connected) == (123, {"site": "north"}, True)
        assert later.last_seen_at > row.last_seen_at > row.enrolled_at, "while it is connected it is seen now"

    @pytest.mark.parametrize(
        ("hello", "code"),
        [
            ({"protocol": 0}, "checkin.protocol"),
            ({"examples": 2**41}, "checkin.examples"),
            ({"labels": {str(number): "x" for number in range(33)}}, "checkin.labels"),
            ({"labels": {"x": "y" * 300}}, "checkin.labels"),
            ({"resuming": [participation_pb2.RoundKey(run="r")] * 65}, "checkin.resuming"),
        ],
    )
    async def test_bounds(self, alice: Participant, hello: dict[str, Any], code: str) -> None:
        assert await greeting(alice, **hello) == ("INVALID_ARGUMENT", code)

    async def test_a_stream_begins_with_hello(self, alice: Participant) -> None:
        stream = Stream(alice.participation.CheckIn())
        await stream.reply(participation_pb2.RoundKey(run="r"), ACCEPTED)
        assert await refused_code(stream.call.read()) == ("INVALID_ARGUMENT", "checkin.order")

    async def test_hello_comes_once(self, alice: Participant) -> None:
        async with alice.check_in() as stream:
            await stream.write(participation_pb2.CheckInRequest(hello=participation_pb2.Hello(protocol=1)))
            assert await refused_code(stream.call.read()) == ("INVALID_ARGUMENT", "checkin.order")

    async def test_who_never_says_hello_is_cut_off(self, alice: Participant, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(participation, "HELLO_S", 0.05)
        call = alice.participation.CheckIn()
        assert await refused_code(call.read()) == ("INVALID_ARGUMENT", "checkin.order")

    async def test_garbage_is_the_callers_fault(self, alice: Participant) -> None:
        call: Any = alice.channel.stream_stream("/atoll.wire.v1.ParticipationService/CheckIn")()
        await call.write(b"\xff\xff")
        assert await refused_code(call.read()) == ("INVALID_ARGUMENT", "wire.message")


class TestInvitation:
    async def test_a_member_is_told_everything(self, world: World, alice: Participant) -> None:
        async with alice.check_in(examples=7) as stream:
            run = await world.submit(job(rounds=3, window_s=5000.0))
            task = await stream.next("participate")
        assert (task.key.run, task.key.round, task.key.attempt) == (run, 0, 0)
        assert (task.run_name, task.rounds_total, task.cohort_size) == ("test", 3, 1)
        assert task.kind == participation_pb2.Participate.KIND_TRAIN
        assert (task.max_weight, task.max_abs, task.encoding) == (7, 32.0, Encoding.FLOAT32)
        assert 5000.0 - WAIT_S < task.remaining_s <= 5000.0
        (model,) = task.inputs
        assert model.name == "model"
        assert layout_from_proto(model.layout) == LAYOUT

    async def test_a_reconnected_member_is_invited_again_unless_it_is_at_work(self, tmp_path: Path) -> None:
        async with World(tmp_path / "data", silence_s=WAIT_S) as world:  # it counts as gone only after that
            alice = await world.participant()
            async with alice.check_in() as stream:
                await world.submit()
                first = await stream.next("participate")
            async with alice.check_in() as stream:
                assert (await stream.next("participate")).key == first.key
            async with alice.check_in(resuming=[first.key]) as stream:
                await alice.report(first.key, update_values(1))
                # The next thing that it hears is the end of the stream: there was no second invitation.
                await stream.call.done_writing()
                assert await stream.read() is None

    async def test_a_member_that_returns_to_a_round_that_is_over_is_spared_the_work(
        self, world: World, alice: Participant
    ) -> None:
        async with alice.check_in() as stream:
            run = await world.submit()
            task = await stream.next("participate")
        await world.operator.control.CancelRun(control_pb2.CancelRunRequest(run=run), timeout=WAIT_S)
        async with alice.check_in(resuming=[task.key]) as stream:
            stop = await stream.next("stop")
            assert stop.key == task.key
            assert not stop.late_report_welcome

    async def test_a_silent_member_that_returns_to_its_work_counts_again(
        self, world: World, alice: Participant, bob: Participant
    ) -> None:
        async with bob.check_in() as bobs:
            async with alice.check_in() as stream:
                run = await world.submit(job(size=2))
                task = await stream.next("participate")
                await stream.reply(task.key, ACCEPTED)
            await bobs.next("participate")
            await world.until(run, "open")
            async with asyncio.timeout(WAIT_S):
                watched = world.operator.control.WatchRun(control_pb2.WatchRunRequest(run=run))
                async for seen in watched:
                    if any(member.status == "silent" for member in seen.round.members):
                        break
            async with alice.check_in(resuming=[task.key]) as stream:
                await stream.next("participate")
                await stream.reply(task.key, ACCEPTED)
                await alice.report(task.key, update_values(1))
                await bob.report(task.key, update_values(2))
            assert (await world.until(run, "finished")).round.reported == 2

    async def test_answers_reach_the_round(self, world: World, alice: Participant, bob: Participant) -> None:
        async with alice.check_in() as alices, bob.check_in() as bobs:
            run = await world.submit(job(size=2, quorum=2, straggler="max_attempts = 1"))
            task = await alices.next("participate")
            await bobs.next("participate")
            await alices.reply(task.key, ACCEPTED)
            await bobs.reply(task.key, DECLINED, "battery low" + "!" * 5000)
            seen = await world.until(run, "failed")
            assert "quorum 2" in seen.summary.reason
            found = await standing(world, run)
            assert found[bob.name][0] == "declined"
            assert found[bob.name][1].startswith("battery low")
            assert len(found[bob.name][1]) == introductions.MAX_REASON_CHARS
            assert found[alice.name][0] == "stopped"
            assert (await alices.next("stop")).key == task.key

    async def test_an_unknown_verdict_is_refused(self, world: World, alice: Participant) -> None:
        async with alice.check_in() as stream:
            await world.submit()
            task = await stream.next("participate")
            await stream.reply(task.key, 9)
            assert await refused_code(stream.call.read()) == ("INVALID_ARGUMENT", "reply.verdict")

    async def test_answers_for_unknown_runs_are_ignored(self, world: World, alice: Participant) -> None:
        async with alice.check_in() as stream:
            await stream.reply(participation_pb2.RoundKey(run="rzzzzzzzzzzzz"), FAILED, "x")
            await world.submit()
            await stream.next("participate")


class TestEnd:
    async def test_a_second_stream_takes_over(self, world: World, alice: Participant) -> None:
        async with alice.check_in() as first, alice.check_in() as second:
            leave = await first.next("come_back")
            assert leave.cause == ComeBack.CAUSE_TAKEN_OVER
            assert leave.after_s == TAKEN_OVER_S  # two processes must not fight for one identity
            assert await first.read() is None
            await world.submit()
            await second.next("participate")

    async def test_a_revoked_participant_is_cut_off_within_five_seconds(self, world: World, alice: Participant) -> None:
        async with alice.check_in() as stream:
            await world.operator.control.RevokeParticipant(
                control_pb2.RevokeParticipantRequest(participant=alice.name), timeout=WAIT_S
            )
            since = time.monotonic()
            assert await refused_code(stream.read()) == ("UNAUTHENTICATED", "certificate.revoked")
            assert kept(time.monotonic() - since, 5.0)
        assert await greeting(alice) == ("UNAUTHENTICATED", "certificate.revoked")

    async def test_a_connection_ends_with_its_certificate(
        self, alice: Participant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(CertificateBook, "remaining_s", lambda *_: 0.05)
        async with alice.check_in() as stream:
            leave = await stream.next("come_back")
            assert (leave.cause, leave.after_s) == (ComeBack.CAUSE_CERTIFICATE, 0.0)
            assert "expired" in leave.reason
            assert await stream.read() is None

    async def test_a_stopping_server_says_when_to_come_back(self, tmp_path: Path) -> None:
        async with World(tmp_path / "data", drain_s=2.0) as world:
            alice = await world.participant()
            async with alice.check_in() as stream:
                stopping = asyncio.create_task(world.daemon.stop())
                leave = await stream.next("come_back")
                assert (leave.cause, leave.reason) == (ComeBack.CAUSE_STOPPING, "the server is stopping")
                await asyncio.wait_for(stopping, WAIT_S)

    async def test_the_session_of_a_slow_reader_ends_but_its_stream_can_still_be_read(
        self, world: World, alice: Participant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "CUT_S", 0.05)
        async with alice.check_in() as stream:
            session = world.daemon._sessions.get(alice.name)
            assert session is not None
            async with asyncio.timeout(WAIT_S):
                while session.send(come_back(ComeBack.CAUSE_STOPPING, 1.0, "x" * 500_000)):
                    pass
                with world.daemon._sessions.watch() as changes:
                    while world.daemon._sessions.get(alice.name) is not None:
                        changes.take()
                        await changes.wait()

            while await stream.read() is not None:
                pass
            assert await stream.call.code() is grpc.StatusCode.OK
