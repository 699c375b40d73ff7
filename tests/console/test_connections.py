from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from atoll.console import connections
from atoll.console.connections import ImpatientProtocol
from tests.console.browser import Running
from tests.patience import WAIT_S


class Looking:
    """A connection whose looks at it a test asks for; in place of its loop, its transport, and uvicorn's requests."""

    def __init__(self) -> None:
        self.is_open = True
        self._looks: list[Callable[[], None]] = []
        protocol: Any = ImpatientProtocol.__new__(ImpatientProtocol)
        protocol.loop = SimpleNamespace(call_later=lambda _, look: self._looks.append(look))
        protocol.transport = SimpleNamespace(close=self._close)
        protocol.cycle = None
        self._protocol = protocol
        self._looks.append(protocol._close_if_idle)

    def request(self, *, answered: bool) -> None:
        self._protocol.cycle = SimpleNamespace(response_complete=answered)

    def answer(self) -> None:
        self._protocol.cycle.response_complete = True

    def look(self) -> bool:
        """Whether the connection is still open after another look."""
        self._looks.pop()()
        return self.is_open

    def _close(self) -> None:
        self.is_open = False


def test_a_connection_without_a_request_is_closed(console: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PATIENCE_S", 0.1)
    with socket.create_connection(("127.0.0.1", console.port), WAIT_S) as connected:
        assert connected.recv(1) == b""


def test_the_first_request_has_until_the_first_look() -> None:
    assert not Looking().look()


def test_a_request_in_work_keeps_a_connection_open() -> None:
    connection = Looking()
    connection.request(answered=False)
    assert all(connection.look() for _ in range(5))


def test_an_answered_connection_stays_for_one_look() -> None:
    connection = Looking()
    connection.request(answered=False)
    assert connection.look()
    connection.answer()
    assert connection.look()
    assert not connection.look()


def test_a_further_request_between_two_looks_counts() -> None:
    connection = Looking()
    for _ in range(5):
        connection.request(answered=True)
        assert connection.look()
    assert not connection.look()
