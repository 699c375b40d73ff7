"""Connections that are closed behind gRPC's back."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import resource
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atoll.server.rpc import connections
from atoll.server.rpc.connections import Connections, SpareDescriptor, shut_down
from tests.patience import WAIT_S


class Line:
    """A listener and connections to it, each from a different port."""

    def __init__(self, stack: contextlib.ExitStack, host: str = "127.0.0.1") -> None:
        self._stack = stack
        self._host = host
        if host == "::":
            self._listener = socket.create_server((host, 0), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, 0), family=family)
        stack.callback(self._listener.close)
        self.port = int(self._listener.getsockname()[1])

    def connect(self, host: str = "127.0.0.1", source_port: int = 0) -> socket.socket:
        caller = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._stack.callback(caller.close)
        caller.settimeout(WAIT_S)
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        caller.bind((host, source_port))
        caller.connect((host, self.port))
        accepted, _ = self._listener.accept()
        self._stack.callback(accepted.close)
        return caller


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


def closed(caller: socket.socket) -> bool:
    """Whether the other end has closed; False if it has not sent anything."""
    caller.setblocking(False)
    try:
        return caller.recv(1) == b""
    except BlockingIOError:
        return False
    finally:
        caller.settimeout(WAIT_S)


def address(caller: socket.socket) -> tuple[str, int]:
    host, port = caller.getsockname()[:2]
    return host, port


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_named_connections_are_shut_down_and_no_other(stack: contextlib.ExitStack, host: str) -> None:
    line = Line(stack, host)
    one, two, other = (line.connect(host) for _ in range(3))
    wanted = {address(one), address(two)}
    assert shut_down(wanted | {("127.0.0.1", 1)}, line.port, SpareDescriptor()) == wanted
    assert [closed(one), closed(two), closed(other)] == [True, True, False]


def test_the_same_peers_connection_with_another_port_stays(stack: contextlib.ExitStack) -> None:
    """Two callers behind one gateway, which may give both the same port for different ports of the server."""
    line, another = Line(stack), Line(stack)
    bystander = another.connect()
    caller = line.connect(source_port=bystander.getsockname()[1])
    assert address(caller) == address(bystander)
    assert shut_down({address(caller)}, line.port, SpareDescriptor()) == {address(caller)}
    assert [closed(caller), closed(bystander)] == [True, False]


def test_a_connection_that_goes_out_stays(stack: contextlib.ExitStack) -> None:
    """Both ends are in this process: the caller's end is connected to the port but is not an end of it."""
    line = Line(stack)
    caller = line.connect()
    assert not shut_down({("127.0.0.1", line.port)}, line.port, SpareDescriptor())
    assert not closed(caller)


SECOND_WRITER = """
import sqlite3, sys
try:
    sqlite3.connect(sys.argv[1], timeout=0).execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError as error:
    print(error)
"""


def test_the_databases_locks_stay(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    """POSIX drops all of a process's locks on a file when it closes any descriptor of the file (fcntl(2))."""
    file = tmp_path / "atoll.sqlite3"
    database = stack.enter_context(contextlib.closing(sqlite3.connect(file, isolation_level=None)))
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("BEGIN IMMEDIATE")
    database.execute("CREATE TABLE promises (text TEXT)")
    line = Line(stack)
    caller = line.connect()
    assert shut_down({address(caller)}, line.port, SpareDescriptor()) == {address(caller)}
    second = [sys.executable, "-c", SECOND_WRITER, str(file)]
    assert subprocess.run(second, capture_output=True, text=True, check=True).stdout == "database is locked\n"
    database.execute("COMMIT")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_an_ipv4_caller_of_an_ipv6_listener_is_found_by_either_name(stack: contextlib.ExitStack) -> None:
    line = Line(stack, "::")
    for name in ("ipv4:127.0.0.1:{}", "ipv6:%5B::ffff:127.0.0.1%5D:{}"):
        found, caller = Connections(), line.connect()
        found.port = line.port
        found.close(name.format(caller.getsockname()[1]))
        assert await asyncio.to_thread(caller.recv, 1) == b""


async def test_one_search_serves_all_connections_named_meanwhile(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, looks = Line(stack), 0

    def listed(folder: str) -> list[str]:
        nonlocal looks
        looks += 1
        return list_files(folder)

    list_files = os.listdir
    monkeypatch.setattr(os, "listdir", listed)
    callers = [line.connect() for _ in range(20)]
    found = Connections()
    found.port = line.port
    for caller in callers:
        found.close(f"ipv4:127.0.0.1:{caller.getsockname()[1]}")
    for caller in callers:
        assert await asyncio.to_thread(caller.recv, 1) == b""
    assert looks == 1


@pytest.fixture
def full(stack: contextlib.ExitStack) -> Callable[[], None]:
    """Opens as many files as the process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def fill() -> None:
        highest = max(int(name) for name in os.listdir("/dev/fd"))  # noqa: PTH208
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with contextlib.suppress(OSError):
            while True:
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(OSError, match="Too many open files"):
            next(Path("/dev/fd").iterdir())

    return fill


async def test_a_process_that_may_open_no_more_closes_connections(
    stack: contextlib.ExitStack, full: Callable[[], None]
) -> None:
    line, found = Line(stack), Connections()
    found.port = line.port
    callers, other = [line.connect() for _ in range(3)], line.connect()
    full()
    for caller in callers:
        found.close(f"ipv4:127.0.0.1:{caller.getsockname()[1]}")
    for caller in callers:
        assert await asyncio.to_thread(caller.recv, 1) == b""
    assert not closed(other)


def test_a_number_that_leads_to_a_file_by_now_takes_no_lock_away(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    file = stack.enter_context((tmp_path / "locked").open("wb"))
    fcntl.lockf(file, fcntl.LOCK_EX)
    spare = SpareDescriptor()
    for descriptor in (file.fileno(), file.fileno()):
        with spare.duplicate(descriptor) as own:
            assert own is None
    line = Line(stack)
    caller = line.connect()
    assert shut_down({address(caller)}, line.port, spare) == {address(caller)}
    locked = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'wb'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    second = subprocess.run([sys.executable, "-c", locked, file.name], capture_output=True, check=False)
    assert b"BlockingIOError" in second.stderr


def test_spares_are_closed_with_their_connections() -> None:
    before = set(os.listdir("/dev/fd"))  # noqa: PTH208
    spare = SpareDescriptor()
    assert set(os.listdir("/dev/fd")) > before  # noqa: PTH208
    del spare
    assert set(os.listdir("/dev/fd")) == before  # noqa: PTH208


async def test_a_look_that_fails_is_logged_and_made_again(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    line = Line(stack)
    caller, works = line.connect(), os.listdir
    failures = [OSError(errno.EACCES, "Permission denied")]

    def fails_once(folder: str) -> list[str]:
        if failures:
            raise failures.pop()
        return works(folder)

    monkeypatch.setattr(connections, "_RETRY_S", 0.0)
    monkeypatch.setattr(os, "listdir", fails_once)
    found = Connections()
    found.port = line.port
    with caplog.at_level(logging.WARNING):
        found.close(f"ipv4:127.0.0.1:{caller.getsockname()[1]}")
        assert await asyncio.to_thread(caller.recv, 1) == b""
    assert "1 unread connections cannot be closed, tried again: [Errno 13] Permission denied" in caplog.text


async def test_a_peer_without_an_ip_address_is_not_searched_for() -> None:
    found = Connections()
    found.close("ipv4:127.0.0.1:1")  # the port is not bound
    found.port = 1
    found.close("unix:/somewhere")
    assert found._closing is None
