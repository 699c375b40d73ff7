"""Calls to one server, with deadlines; failures are raised as ``OperatorError``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from atoll.operator.errors import BadInputError, OperatorError, UnreachableError, translated
from atoll.operator.paging import Answer, Request, pages
from atoll.server.control import make_readable
from atoll.wire.v1 import control_pb2, control_pb2_grpc, transfer_pb2_grpc

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from atoll.operator.connecting import Target

Response = TypeVar("Response", bound="Message")


@dataclass(frozen=True)
class Timeouts:
    """Time limits of operations, in seconds.

    Attributes:
        call_s: a plain call.
        submit_s: a submission; computing a private job's noise takes seconds, more on a busy machine.
        ledger_s: a query of the ledger, which is verified and composed.
        delete_s: the deletion of a run; a long run with many participants has millions of rows.
        reconnect_s: how long a server may be unreachable while a run is followed.
        slowest_bytes_per_s: a transfer below this rate is cancelled.

    Raises:
        BadInputError: for a value that is not above 0 (``reconnect_s`` may be 0: no waiting).
    """

    call_s: float = 30.0
    submit_s: float = 300.0
    ledger_s: float = 300.0
    delete_s: float = 300.0
    reconnect_s: float = 60.0
    slowest_bytes_per_s: float = 256 * 1024

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            least = 0 if one.name == "reconnect_s" else 1e-9
            if not least <= value < float("inf"):
                raise BadInputError(f"Timeouts: {one.name} = {value}; allowed is a finite number above 0")

    def transfer_s(self, size_bytes: int) -> float:
        """The time limit of a transfer of this size."""
        return self.call_s + size_bytes / self.slowest_bytes_per_s


class Calls:
    """Calls over one channel; ``close`` ends them."""

    def __init__(self, target: Target, timeouts: Timeouts) -> None:
        self.target = target
        self.timeouts = timeouts
        self.channel = target.open()
        self._closed = False
        self._project_known = not target.project
        self.control = control_pb2_grpc.ControlServiceStub(self.channel)
        self.transfer = transfer_pb2_grpc.TransferServiceStub(self.channel)

    @property
    def address(self) -> str:
        """host:port of the server."""
        return self.target.address

    def close(self) -> None:
        """End the channel and the calls on it."""
        self._closed = True
        self.channel.close()

    def call(self, method: Callable[..., Response], request: object, timeout_s: float | None = None) -> Response:
        """One call.

        Raises:
            OperatorError: if it fails.
        """
        self._require_open()
        self._require_project()
        with translated(self.address):
            answer = method(request, timeout=timeout_s or self.timeouts.call_s, metadata=self.target.metadata)
        make_readable(answer)
        return answer

    def pages(self, method: Callable[..., Answer], request: Request) -> Iterator[Answer]:
        """The answers to a list request, page by page. Raises as ``call``."""
        untyped: Callable[..., Any] = method  # an answer is a message with a page mark: no type for both
        return pages(lambda asked: self.call(untyped, asked), request)

    def stream(self, method: Callable[..., Any], request: object, timeout_s: float, *, wait: bool = False) -> Any:
        """A streaming call, not yet read; with ``wait`` it waits for an unreachable server."""
        self._require_open()
        self._require_project()
        return method(request, timeout=timeout_s, metadata=self.target.metadata, wait_for_ready=wait)

    def wait_until_reachable(self, timeout_s: float) -> None:
        """Wait for an unreachable server with a small call; any answer, even a refusal, shows that it is back.

        (``grpc.channel_ready_future`` leaves a thread that fails with a traceback if the channel is closed soon after.)

        Raises:
            UnreachableError: if it does not answer in time.
        """
        self._require_open()
        method, request = self.control.GetServerInfo, control_pb2.GetServerInfoRequest()
        try:
            method(request, timeout=timeout_s, metadata=self.target.metadata, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise away(self.address, timeout_s) from None

    def _require_open(self) -> None:
        if self._closed:
            raise BadInputError(f"the connection to {self.address} is closed", "connect again")

    def _require_project(self) -> None:
        """Ask the server once for the project that it sees, because a server without projects would ignore it.

        Raises:
            OperatorError: if its version has no projects, or this operator has no such project.
        """
        if self._project_known:
            return
        with translated(self.address):
            answer = self.control.WhoAmI(
                control_pb2.WhoAmIRequest(), timeout=self.timeouts.call_s, metadata=self.target.metadata
            )
        if answer.project != self.target.project:
            raise OperatorError(
                f"the server at {self.address} has a version without projects, but project {self.target.project} was "
                "named",
                "leave --project and ATOLL_PROJECT out (atoll project use --none), or upgrade the server",
            )
        self._project_known = True


def away(address: str, timeout_s: float) -> UnreachableError:
    """The error for a server that did not come back."""
    return UnreachableError(f"the server at {address} did not come back within {timeout_s:.0f} s")
