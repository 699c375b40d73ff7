"""Rank 0's session beside training, with a round that no rank takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from atoll.client._connection.endpoint import Endpoint
from atoll.client._session.session import Session
from atoll.datacenter.federation.session_thread import SessionThread, SiloParticipant
from atoll.wire.v1 import participation_pb2 as part
from tests.client.harness import FAST, Federation
from tests.patience import WAIT_S


@pytest.fixture
async def server() -> AsyncIterator[Federation]:
    async with Federation({"w": np.zeros(4, np.float32)}) as made:
        yield made


def session_of(server: Federation, state: Path) -> SessionThread:
    endpoint = Endpoint(server.address, None, "p1")
    return SessionThread(
        lambda make_work: Session(SiloParticipant(9), endpoint, state, limits=FAST, make_work=make_work)
    )


async def taken(server: Federation) -> part.Hello:
    """Invite the silo to a round, which it accepts; return its greeting."""
    hello = await server.hellos.get()
    server.invite(0)
    assert (await server.replies.get()).verdict == part.TaskReply.VERDICT_ACCEPTED
    return hello


async def test_a_round_that_no_rank_takes_does_not_keep_a_silo_that_stops(
    server: Federation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The round comes as the silo stops: that is reported, and the server does not wait for the ranks."""
    with session_of(server, tmp_path) as session_thread:
        async with asyncio.timeout(WAIT_S):
            await taken(server)
            await asyncio.to_thread(session_thread.stop, "the silo was asked to stop")
            reply = await server.replies.get()
    assert (reply.verdict, reply.reason) == (part.TaskReply.VERDICT_FAILED, "the silo was asked to stop")
    assert "did not return" not in caplog.text
    assert session_thread.summary().failed == 1


async def test_a_silo_that_will_return_leaves_its_round_open(
    server: Federation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server hears nothing of the round; the next session is invited to it and takes it."""
    with session_of(server, tmp_path) as session_thread:
        async with asyncio.timeout(WAIT_S):
            await taken(server)
            await asyncio.to_thread(session_thread.leave, "the silo was asked to stop")
    assert (server.replies.empty(), session_thread.summary().failed) == (True, 0)
    assert "did not return" not in caplog.text

    with session_of(server, tmp_path) as session_thread:
        async with asyncio.timeout(WAIT_S):
            assert not (await taken(server)).resuming
            await asyncio.to_thread(session_thread.stop, "the test is over")  # the server is in this thread
