"""The synchronous interface, and how ``Access`` is put together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from atoll.client import Access, StateInUseError, UsageError, run, serve
from atoll.client._state.files import locked
from atoll.client.participate import default_state, read_token
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


def test_a_join_token_is_given_or_is_in_a_file_or_on_one_of_its_lines(tmp_path: Path) -> None:
    one, several = tmp_path / "one.txt", tmp_path / "several.txt"
    one.write_text("atoll-join-1\n")
    several.write_text("atoll-join-1\natoll-join-2\n\n")
    (tmp_path / "odd:2").write_text("atoll-join-3")
    assert read_token("atoll-join-9") == "atoll-join-9"
    assert read_token(f"@{one}") == read_token(f"@{several}:1") == "atoll-join-1"
    assert read_token(f"@{several}:2") == "atoll-join-2"
    assert read_token(f"@{tmp_path}/odd:2") == "atoll-join-3"


@pytest.mark.parametrize(
    ("text", "given", "says"),
    [
        ("", "@FILE", "FILE is empty: ask the operator for a join token"),
        ("a\nb\n", "@FILE", "FILE has 2 join tokens: say which, for example --join @FILE:1"),
        ("a\nb\n", "@FILE:3", "FILE has 2 join tokens; give a line from 1 on"),
        ("a\n", "@FILE:0", "FILE has 1 join token; give a line from 1 on"),
        ("a\n", "@gone:1", "cannot read the join token from gone"),
        ("a\n", "@gone", "cannot read the join token from gone"),
    ],
)
def test_a_file_without_that_token_is_said(tmp_path: Path, text: str, given: str, says: str) -> None:
    path = tmp_path / "tokens.txt"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_token(given.replace("FILE", str(path)))
    assert says.replace("FILE", str(path)) in str(caught.value)
