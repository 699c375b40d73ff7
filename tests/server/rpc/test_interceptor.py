"""Callers who send half of a request, or do not read answers: over real sockets, with TLS, against a whole daemon."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.server.config.limits import Limits
from atoll.server.rpc import authentication
from atoll.server.runs import session as module
from atoll.server.runs.session import ComeBack, come_back
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.messages import layout_to_proto
from atoll.wire.v1 import control_pb2, participation_pb2, transfer_pb2
from tests.patience import WAIT_S
from tests.server.rpc.world import Participant, World, job, refused_code
from tests.system.http2 import Call, Http2

pytestmark = pytest.mark.slow

SERVICE = "/atoll.wire.v1.TransferService"
CHECK_IN = "/atoll.wire.v1.ParticipationService/CheckIn"
HELLO = participation_pb2.CheckInRequest(hello=participation_pb2.Hello(protocol=1, examples=1)).SerializeToString()
HALF_BYTES = 200_000
LIMIT_S = 3.0
"""For a request to come, and for an answer to be read: longer than a busy machine lets this process stand still."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path / "data", limits=Limits(request_s=LIMIT_S, unread_s=LIMIT_S)) as opened:
        yield opened


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[World]:
    """A server that waits long for its callers to read."""
    async with World(tmp_path / "data", limits=Limits(unread_s=WAIT_S)) as opened:
        yield opened


def connection(world: World, participant: Participant) -> Http2:
    key, certificate = participant.key.pem.decode(), participant.certificate.decode()
    return Http2.secure(world.addresses.main, world.ca.decode(), key, certificate)


def unread_connection(world: World, participant: Participant) -> Http2:
    """A connection whose answers are not read; the server may send one byte of each."""
    key, certificate = participant.key.pem.decode(), participant.certificate.decode()
    return Http2.secure(world.addresses.main, world.ca.decode(), key, certificate, reads=False, window_bytes=1)


def operators_connection(world: World, window_bytes: int = 65_535) -> Http2:
    """An operator's connection whose answers are not read."""
    assert world.addresses.operator is not None
    kept = json.loads(world.addresses.operator.read_text())
    key, certificate = kept["key"], kept["certificate"]
    return Http2.secure(
        world.addresses.main, world.ca.decode(), key, certificate, reads=False, window_bytes=window_bytes
    )


def figures_of(world: World) -> str:
    with urllib.request.urlopen(f"http://{world.addresses.metrics}/metrics", timeout=WAIT_S) as answer:
        return str(answer.read().decode())


async def half_sent(http2: Http2, method: str, count: int = 3) -> list[Call]:
    """Calls whose last byte is never sent, after they have ended."""

    def send() -> list[Call]:
        calls = [http2.half_call(method, HALF_BYTES) for _ in range(count)]
        http2.push()
        http2.until_ended(calls)
        return calls

    with contextlib.closing(http2):
        return await asyncio.to_thread(send)


@pytest.mark.parametrize(
    "method",
    [
        f"{SERVICE}/GetManifest",
        f"{SERVICE}/Report",
        f"{SERVICE}/Download",
        "/atoll.wire.v1.RenewalService/Renew",
        "/atoll.wire.v1.ControlService/WatchRun",
        "/grpc.health.v1.Health/Check",
    ],
)
async def test_half_a_request_is_refused_once_its_time_is_over(
    world: World, alice: Participant, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        calls = await half_sent(await asyncio.to_thread(connection, world, alice), method)
    assert {call.code for call in calls} == {"request.slow"}
    found = [record for record in caplog.records if "not whole within" in record.getMessage()]
    assert len(found) == 1
    assert found[0].participant == (alice.name if "atoll" in method else "127.0.0.1")  # type: ignore[attr-defined]


async def test_of_a_revoked_participant_nothing_is_received(world: World, alice: Participant) -> None:
    http2 = await asyncio.to_thread(connection, world, alice)
    revocation = control_pb2.RevokeParticipantRequest(participant=alice.name)
    await world.operator.control.RevokeParticipant(revocation, timeout=WAIT_S)
    calls = await half_sent(http2, f"{SERVICE}/Report")
    assert {call.code for call in calls} == {"certificate.revoked"}


async def test_a_call_without_a_request_is_refused(alice: Participant) -> None:
    stream: Any = alice.channel.stream_unary(f"{SERVICE}/GetManifest")
    assert await refused_code(stream(iter(()))) == ("INVALID_ARGUMENT", "request.missing")


async def test_a_download_that_is_not_read_ends_with_its_connection(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    blob = await world.upload_model(np.zeros(1 << 20, np.float32), chunk_bytes=1 << 18)
    request = transfer_pb2.DownloadRequest(blob=blob).SerializeToString()
    http2 = await asyncio.to_thread(operators_connection, world)

    def ask() -> Call:
        call = http2.call(f"{SERVICE}/Download", request)
        http2.until_closed()
        return call

    with contextlib.closing(http2), caplog.at_level(logging.WARNING):
        call = await asyncio.to_thread(ask)
    assert 0 < call.received_bytes < 1 << 18
    assert "took nothing of a message" in caplog.text
    figures = await asyncio.to_thread(figures_of, world)
    assert 'atoll_downloads_open{node="main"} 0.0' in figures
    assert 'atoll_refused_calls_total{code="stream.unread",node="main"} 1.0' in figures


async def test_an_answer_that_is_not_read_ends_with_its_connection(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The manifest of 4 MiB in chunks of 1 KiB has 128 KiB, more than may be sent before it is read."""
    blob = await world.upload_model(np.zeros(1 << 20, np.float32), chunk_bytes=1 << 10)
    request = transfer_pb2.GetManifestRequest(blob=blob).SerializeToString()
    http2 = await asyncio.to_thread(operators_connection, world)

    def ask() -> None:
        http2.call(f"{SERVICE}/GetManifest", request)
        http2.until_closed()

    with contextlib.closing(http2), caplog.at_level(logging.WARNING):
        await asyncio.to_thread(ask)
    assert "has not taken an answer of " in caplog.text


async def test_answers_that_are_not_read_are_bounded_by_their_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nine manifests of 128 KiB exceed the MiB that a caller may leave unread, so no time has to pass."""
    async with World(tmp_path / "data", limits=Limits(unread_s=3600.0, unread_mib_per_caller=1)) as world:
        blob = await world.upload_model(np.zeros(1 << 20, np.float32), chunk_bytes=1 << 10)
        request = transfer_pb2.GetManifestRequest(blob=blob).SerializeToString()
        http2 = await asyncio.to_thread(operators_connection, world)

        def ask() -> None:
            for _ in range(9):
                http2.call(f"{SERVICE}/GetManifest", request)
            http2.until_closed()

        with contextlib.closing(http2), caplog.at_level(logging.WARNING):
            await asyncio.to_thread(ask)
    assert "leaves too many answers unread" in caplog.text


async def test_a_revoked_participant_that_reads_nothing_loses_its_connection(world: World, alice: Participant) -> None:
    http2 = await asyncio.to_thread(connection, world, alice)
    with contextlib.closing(http2):
        http2.half_call("/atoll.wire.v1.ParticipationService/CheckIn", 100)
        await asyncio.to_thread(http2.push)
        revocation = control_pb2.RevokeParticipantRequest(participant=alice.name)
        await world.operator.control.RevokeParticipant(revocation, timeout=WAIT_S)
        await asyncio.to_thread(http2.until_closed)


async def test_a_check_in_that_is_not_read_ends_with_its_connection(
    world: World, alice: Participant, caplog: pytest.LogCaptureFixture
) -> None:
    http2 = await asyncio.to_thread(unread_connection, world, alice)
    with contextlib.closing(http2), caplog.at_level(logging.WARNING):
        call = http2.call(CHECK_IN, HELLO, ends=False)
        await asyncio.to_thread(http2.until_closed)
    assert call.received_bytes == 1
    assert "took nothing of a message" in caplog.text
    async with asyncio.timeout(WAIT_S):
        while world.daemon._sessions.get(alice.name) is not None:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)


async def test_a_watched_run_that_is_not_read_ends_with_its_connection(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    request = control_pb2.WatchRunRequest(run=await world.submit()).SerializeToString()
    http2 = await asyncio.to_thread(operators_connection, world, 1)
    with contextlib.closing(http2), caplog.at_level(logging.WARNING):
        call = http2.call("/atoll.wire.v1.ControlService/WatchRun", request)
        await asyncio.to_thread(http2.until_closed)
    assert call.received_bytes == 1
    assert "took nothing of a message" in caplog.text
    figures = await asyncio.to_thread(figures_of, world)
    assert 'atoll_refused_calls_total{code="stream.unread",node="main"} 1.0' in figures


async def test_a_session_that_is_over_unread_leaves_other_calls_of_its_connection_alone(
    patient: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload may continue over the same connection, which is closed only after the time limit of a message."""
    monkeypatch.setattr(module, "CUT_S", 0.0)
    world, alice = patient, await patient.participant()
    http2 = await asyncio.to_thread(unread_connection, world, alice)
    with contextlib.closing(http2):
        check_in = http2.call(CHECK_IN, HELLO, ends=False)
        async with asyncio.timeout(WAIT_S):
            while (session := world.daemon._sessions.get(alice.name)) is None:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
            session.close(come_back(ComeBack.CAUSE_STOPPING, 1.0, "x"))
            while world.daemon._sessions.get(alice.name) is not None:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)

        def call_and_read() -> None:
            other = http2.call("/grpc.health.v1.Health/Check")
            http2.read(other)
            http2.until_ended([other])
            assert other.code == "0"
            http2.read(check_in)
            http2.until_ended([check_in])

        await asyncio.to_thread(call_and_read)
        assert not http2.closed
        assert check_in.code == "0"


async def test_a_download_ends_with_its_round(patient: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends after the message in flight, which gRPC cannot take back."""
    monkeypatch.setattr(authentication, "WANTED_CHECK_S", 0.0)
    world, alice = patient, await patient.participant()
    values = np.zeros(4096, np.float32)
    layout = Layout((TensorSpec("w", values.shape, Dtype.FLOAT32),))
    submission = control_pb2.SubmitRunRequest(
        job_toml=job(), layout=layout_to_proto(layout), initial_blob=await world.upload_model(values)
    )
    async with alice.check_in() as stream:
        run = (await world.operator.control.SubmitRun(submission, timeout=WAIT_S)).run
        task = await stream.next("participate")
        request = transfer_pb2.DownloadRequest(blob=task.inputs[0].blob).SerializeToString()
        http2 = await asyncio.to_thread(unread_connection, world, alice)
        with contextlib.closing(http2):
            call = http2.call(f"{SERVICE}/Download", request)

            def begin() -> None:
                while not call.received_bytes:
                    http2.take(0.1)

            def go_on() -> None:
                http2.read(call)
                http2.until_ended([call])

            await asyncio.wait_for(asyncio.to_thread(begin), WAIT_S)
            await world.operator.control.CancelRun(control_pb2.CancelRunRequest(run=run), timeout=WAIT_S)
            await asyncio.to_thread(go_on)
            assert not http2.closed
    assert call.code == "blob.member"
    assert call.received_bytes < values.nbytes
