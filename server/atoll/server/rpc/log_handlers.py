"""The part of ControlService about the server's log."""

from __future__ import annotations

from atoll.server.control import message_of
from atoll.server.rpc.authentication import Context
from atoll.server.rpc.operator_handlers import OperatorHandlers, page_size
from atoll.wire.v1 import control_pb2

_SEVERITIES = {control_pb2.LOG_LEVEL_WARNING: "warning", control_pb2.LOG_LEVEL_ERROR: "error"}
_LEVELS = {"info": control_pb2.LOG_LEVEL_INFO, **{word: number for number, word in _SEVERITIES.items()}}


class LogHandlers(OperatorHandlers):
    """Handlers about the server's log."""

    async def ListLogLines(
        self, request: control_pb2.ListLogLinesRequest, context: Context
    ) -> control_pb2.ListLogLinesResponse:
        """The newest lines that are kept, the newest first."""
        await self._authenticator.operator(context)
        limit = page_size(request.limit)
        found = self._recent_log.newest(
            severity=_SEVERITIES.get(request.level, "info"),
            before=int(request.after) if request.after.isascii() and request.after.isdigit() else None,
            limit=limit,
        )
        return control_pb2.ListLogLinesResponse(
            lines=[message_of(control_pb2.LogLine, one, level=_LEVELS[one.level]) for one in found],
            next=str(found[-1].number) if len(found) == limit else "",
        )
