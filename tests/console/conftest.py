"""A console of a small control server, both over real sockets."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from atoll.wire.project import PROJECT
from atoll.wire.v1 import control_pb2
from tests.console.browser import Browser, Running, running
from tests.server.cli.conftest import Fake, FakeControl, serve


class Changes:
    """Messages of the stream of a run; each watcher gets all of them, from the first on."""

    def __init__(self) -> None:
        self._items: list[control_pb2.WatchRunResponse] = []
        self._more = threading.Condition()

    def put(self, change: control_pb2.WatchRunResponse) -> None:
        with self._more:
            self._items.append(change)
            self._more.notify_all()

    def watched(self, context: grpc.ServicerContext) -> Iterator[control_pb2.WatchRunResponse]:
        """Until the caller leaves."""
        context.add_callback(self._wake)
        for number in itertools.count():
            with self._more:
                self._more.wait_for(lambda: len(self._items) > number or not context.is_active())  # noqa: B023
                if not context.is_active():
                    return
                item = self._items[number]
            yield item

    def _wake(self) -> None:
        with self._more:
            self._more.notify_all()


class Watched(FakeControl):
    """Watching gives what a test puts into ``changes``; reasons of cancelled runs are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = Changes()
        self.cancelled: list[str] = []
        self.projects_refused: grpc.StatusCode | None = None
        self.lost_project = ""

    def CancelRun(self, request: control_pb2.CancelRunRequest, context: Any) -> Any:  # noqa: N802 - the contract's name
        self.cancelled.append(request.reason)
        return super().CancelRun(request, context)

    def ListProjects(self, request: control_pb2.ListProjectsRequest, context: Any) -> Any:  # noqa: N802 - the contract's name
        if self.projects_refused is not None:
            context.abort(self.projects_refused, "the disk is full")
        return super().ListProjects(request, context)

    def WhoAmI(self, request: control_pb2.WhoAmIRequest, context: Any) -> Any:  # noqa: N802 - the contract's name
        if self.lost_project and dict(context.invocation_metadata()).get(PROJECT) == self.lost_project:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no project '{self.lost_project}'")
        return super().WhoAmI(request, context)

    def WatchRun(self, request: control_pb2.WatchRunRequest, context: Any) -> Any:  # noqa: N802 - the contract's name
        self.asked.append(request)
        yield from self.changes.watched(context)


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
