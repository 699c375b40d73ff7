"""A console of a small control server, both over real sockets."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import pytest

from atoll.wire.v1 import control_pb2
from tests.console.browser import Browser, Running, running
from tests.server.cli.conftest import Fake, FakeControl, serve


class Watched(FakeControl):
    """Watching gives what a test puts into ``changes``, until None."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelled: list[str] = []
        self.changes: queue.Queue[control_pb2.WatchRunResponse | None] = queue.Queue()

    def CancelRun(self, request: control_pb2.CancelRunRequest, context: Any) -> Any:  # noqa: N802 - the contract's name
        self.cancelled.append(request.reason)
        return super().CancelRun(request, context)

    def WatchRun(self, request: control_pb2.WatchRunRequest, context: Any) -> Any:  # noqa: N802 - the contract's name
        del request
        context.add_callback(lambda: self.changes.put(None))
        yield from iter(self.changes.get, None)


@pytest.fixture
def control() -> Watched:
    return Watched()


@pytest.fixture
def fake(control: Watched) -> Iterator[Fake]:
    yield from serve(lambda server: server.add_insecure_port("127.0.0.1:0"), control)


@pytest.fixture
def console(fake: Fake) -> Iterator[Running]:
    with running(fake.address) as found:
        yield found


@pytest.fixture
def browser(console: Running) -> Browser:
    return console.browser()
