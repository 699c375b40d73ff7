"""A revocation takes effect as soon as it is durable, even for calls that were admitted earlier."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.server.identity import Role
from atoll.server.ingest.commit import commit_upload
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.rpc import authentication, transfer
from atoll.server.rpc.admission import Admission
from atoll.server.rpc.connections import Connections
from atoll.server.rpc.open_calls import OpenCalls
from atoll.wire.v1 import control_pb2, participation_pb2, transfer_pb2
from tests.patience import WAIT_S, until
from tests.server.rpc.world import Participant, Stream, World, chunks_of, frames_of, job, refused_code
from tests.server.rpc.world import update_values as values

pytestmark = pytest.mark.slow

REVOKED = ("UNAUTHENTICATED", "certificate.revoked")
HELLO = participation_pb2.CheckInRequest(hello=participation_pb2.Hello(protocol=1, examples=10))


@pytest.fixture(autouse=True)
def no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable timers, so that calls end because of the revocation and not because of a periodic check."""
    monkeypatch.setattr(authentication, "REVOCATION_CHECK_S", 3600.0)


async def revoke(world: World, participant: Participant) -> None:
    request = control_pb2.RevokeParticipantRequest(participant=participant.name, reason="lost")
    await world.operator.control.RevokeParticipant(request, timeout=WAIT_S)


async def invited(world: World, *members: Participant) -> participation_pb2.RoundKey:
    """Check these in for the rest of the test, and invite them to a round for which one report is enough."""
    streams = [await world._stack.enter_async_context(member.check_in()) for member in members]
    await world.submit(job(size=len(members), quorum=1))
    keys: list[participation_pb2.RoundKey] = [(await stream.next("participate")).key for stream in streams]
    return keys[0]


def after(method: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, owner: type) -> asyncio.Event:
    """Set once ``method`` of ``owner`` has been called and has ended."""
    done = asyncio.Event()

    async def note(*args: Any, **kwargs: Any) -> Any:
        result = await method(*args, **kwargs)
        done.set()
        return result

    monkeypatch.setattr(owner, method.__name__, note)
    return done


@pytest.mark.parametrize("ends_calls", [True, False], ids=["ended at once", "identified again"])
async def test_a_hello_after_the_revocation_is_not_welcomed(
    world: World, alice: Participant, monkeypatch: pytest.MonkeyPatch, ends_calls: bool
) -> None:
    """Identification happens when the call begins, and the hello may come much later. Either defence alone suffices."""
    if not ends_calls:
        monkeypatch.setattr(OpenCalls, "end", lambda *_: None)
    identified = after(Admission.check_in, monkeypatch, Admission)
    seen: list[str] = []
    world.daemon._sessions.listen(connected=lambda one: seen.append(one.participant), disconnected=lambda _: None)
    stream = Stream(alice.participation.CheckIn())
    await asyncio.wait_for(stream.call.wait_for_connection(), WAIT_S)
    await asyncio.wait_for(identified.wait(), WAIT_S)
    await revoke(world, alice)

    async def late_hello() -> None:
        with contextlib.suppress(asyncio.InvalidStateError):  # the call has ended already
            await stream.write(HELLO)
        await stream.read()

    assert await refused_code(late_hello()) == REVOKED
    assert seen == []
    assert len(world.daemon._sessions) == 0


async def test_its_session_is_gone_when_the_operator_has_the_answer(world: World, alice: Participant) -> None:
    """No draw may find it any more, and its queued instructions are not sent."""
    async with alice.check_in() as stream:
        await revoke(world, alice)
        assert world.daemon._sessions.get(alice.name) is None
        assert await refused_code(stream.read()) == REVOKED


async def test_an_upload_that_waits_is_ended(world: World, alice: Participant, bob: Participant) -> None:
    at = await invited(world, alice, bob)
    sent, first = asyncio.Event(), frames_of(alice.upload_key(at), chunks_of(values(1)))[0]

    async def held_back() -> AsyncIterator[bytes]:
        yield first
        sent.set()
        await asyncio.Event().wait()

    upload = alice.upload(held_back())
    await asyncio.wait_for(sent.wait(), WAIT_S)
    await until(lambda: world.daemon._figures.meter.uploaded_chunks == 1)
    await revoke(world, alice)
    assert await refused_code(upload) == REVOKED


async def test_a_download_that_is_not_read_is_ended(tmp_path: Path) -> None:
    async with World(tmp_path / "data", share_models=True) as world:
        alice = await world.participant()
        blob = await world.upload_model(np.zeros(16 << 20, np.float32), 2 << 20)
        download = alice.transfer.Download(transfer_pb2.DownloadRequest(blob=blob))
        meter = world.daemon._figures.meter
        await until(lambda: meter.downloaded_chunks > 0)
        await revoke(world, alice)
        await until(lambda: meter.downloads_open == 0)
        assert meter.downloaded_chunks < 32
        download.cancel()


@pytest.mark.parametrize("ends_calls", [True, False], ids=["ended at once", "asked again"])
async def test_a_report_that_is_being_committed_does_not_count(
    world: World, alice: Participant, bob: Participant, monkeypatch: pytest.MonkeyPatch, ends_calls: bool
) -> None:
    if not ends_calls:
        monkeypatch.setattr(OpenCalls, "end", lambda *_: None)
    at = await invited(world, alice, bob)
    digest = await alice.send(at, values(1))
    loop, syncing, go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def slow(*args: Any) -> Any:
        loop.call_soon_threadsafe(syncing.set)
        assert go.wait(WAIT_S)
        return commit_upload(*args)

    monkeypatch.setattr(transfer, "commit_upload", slow)
    reporting = asyncio.create_task(refused_code(alice.claim(at, digest)))
    await asyncio.wait_for(syncing.wait(), WAIT_S)
    await revoke(world, alice)
    go.set()
    assert await reporting == REVOKED
    monkeypatch.undo()
    await bob.report(at, values(2))
    ended = await world.until(at.run, "finished")
    assert {row.participant: row.status for row in ended.round.members}[bob.name] == "reported"
    assert {row.participant: row.status for row in ended.round.members}[alice.name] == "silent"


async def test_streams_of_other_participants_go_on(world: World, alice: Participant, bob: Participant) -> None:
    async with alice.check_in(), bob.check_in() as stream:
        await revoke(world, alice)
        run = await world.submit(job(size=1))
        assert (await stream.next("participate")).key.run == run


async def test_no_call_is_remembered_after_its_end() -> None:
    calls, ended = OpenCalls(Connections()), []

    class Call:
        def add_done_callback(self, callback: Callable[[Any], None]) -> None:
            ended.append(callback)

    context: Any = Call()
    calls.begin(Caller(Role.PARTICIPANT, "paaaaaaaaaaaa"), context)
    assert len(calls) == 1
    ended[0](context)
    assert len(calls) == 0
