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

from atoll.server.daemon.limits import Limits
from atoll.wire.v1 import control_pb2, transfer_pb2
from tests.patience import WAIT_S
from tests.server.rpc.world import Participant, World, refused_code
from tests.system.http2 import Call, Http2

SERVICE = "/atoll.wire.v1.TransferService"
HALF_BYTES = 200_000
REQUEST_S = 1.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path / "data", limits=Limits(request_s=REQUEST_S, unread_s=1.0)) as opened:
        yield opened


def connection(world: World, participant: Participant) -> Http2:
    key, certificate = participant.key.pem.decode(), participant.certificate.decode()
    return Http2.secure(world.addresses.main, world.ca.decode(), key, certificate)


def operators_connection(world: World) -> Http2:
    """One whose answers are not read."""
    assert world.addresses.operator is not None
    kept = json.loads(world.addresses.operator.read_text())
    return Http2.secure(world.addresses.main, world.ca.decode(), kept["key"], kept["certificate"], reads=False)


def figures_of(world: World) -> str:
    with urllib.request.urlopen(f"http://{world.addresses.metrics}/metrics", timeout=WAIT_S) as answer:
        return str(answer.read().decode())


async def half_sent(http2: Http2, method: str, count: int = 3) -> list[Call]:
    """Calls whose last byte does not come, once they have ended."""

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
    told = [record for record in caplog.records if "not whole within" in record.getMessage()]
    assert len(told) == 1
    assert told[0].participant == (alice.name if "atoll" in method else "127.0.0.1")  # type: ignore[attr-defined]


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
    """A manifest of 4 MiB in chunks of 1 KiB has 128 KiB, more than what may be sent before it is read."""
    blob = await world.upload_model(np.zeros(1 << 20, np.float32), chunk_bytes=1 << 10)
    request = transfer_pb2.GetManifestRequest(blob=blob).SerializeToString()
    http2 = await asyncio.to_thread(operators_connection, world)

    def ask() -> None:
        http2.call(f"{SERVICE}/GetManifest", request)
        http2.until_closed()

    with contextlib.closing(http2), caplog.at_level(logging.WARNING):
        await asyncio.to_thread(ask)
    assert "took nothing of a message" in caplog.text


async def test_a_revoked_participant_that_reads_nothing_loses_its_connection(world: World, alice: Participant) -> None:
    http2 = await asyncio.to_thread(connection, world, alice)
    with contextlib.closing(http2):
        http2.half_call("/atoll.wire.v1.ParticipationService/CheckIn", 100)
        await asyncio.to_thread(http2.push)
        revocation = control_pb2.RevokeParticipantRequest(participant=alice.name)
        await world.operator.control.RevokeParticipant(revocation, timeout=WAIT_S)
        await asyncio.to_thread(http2.until_closed)
