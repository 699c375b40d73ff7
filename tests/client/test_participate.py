"""The synchronous interface, and how ``Access`` is put together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from atoll.client import Access, StateInUseError, UsageError, run, serve
from atoll.client._state.files import locked
from atoll.client.participate import default_state
from tests.client.harness import FAST, AddOne, Federation


def access(server: Federation, state: Path) -> Access:
    return Access(state=state, server=server.address, insecure=True, name="p1")


async def test_the_sync_face_runs_outside_the_main_thread(server: Federation, tmp_path: Path) -> None:
    session = asyncio.create_task(
        asyncio.to_thread(run, AddOne(), access(server, tmp_path), max_rounds=2, limits=FAST, labels={"site": "a"})
    )
    assert dict((await server.hello()).labels) == {"site": "a"}
    for number in range(2):
        server.invite(number)
        np.testing.assert_array_equal(server.update_of(await server.report()), 1.0)
    assert (await session).reported == 2


async def test_it_says_what_to_do_where_a_loop_runs_already(server: Federation, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"await serve\(\.\.\.\) instead"):
        run(AddOne(), access(server, tmp_path))


async def test_cancelling_the_async_core_gives_up_the_work(server: Federation, tmp_path: Path) -> None:
    trainer = AddOne()
    session = asyncio.create_task(serve(trainer, access(server, tmp_path), limits=FAST))
    await server.hello()
    session.cancel()
    with pytest.raises(asyncio.CancelledError):
        await session
    assert trainer.closed == 1


async def test_the_state_directory_is_held(server: Federation, tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(StateInUseError):
        await serve(AddOne(), access(server, tmp_path))


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    for incomplete, message in [
        (Access(state=tmp_path), "no identity in .*: give a join token"),
        (Access(state=tmp_path, insecure=True), "the server's address is needed"),
        (Access(state=tmp_path, insecure=True, server="127.0.0.1:1"), "a participant name is needed"),
        (Access(state=tmp_path, insecure=True, server="nonsense", name="p"), "expected host:port"),
    ]:
        with pytest.raises(UsageError, match=message):
            incomplete.endpoint()


def test_the_join_token_is_not_shown() -> None:
    assert "s3cret" not in repr(Access(join="s3cret"))


def test_the_default_state_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state() == tmp_path / "atoll" / "client"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_state() == tmp_path / ".local" / "state" / "atoll" / "client"
