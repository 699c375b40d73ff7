"""The part of ControlService about the server's log."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from atoll.server.control import LogLine, message_of
from atoll.server.rpc.authentication import Context
from atoll.server.rpc.operator_handlers import OperatorHandlers, page_size
from atoll.server.rpc.scoping import current_scope
from atoll.server.stores import projects
from atoll.wire.v1 import control_pb2

_SEVERITIES = {control_pb2.LOG_LEVEL_WARNING: "warning", control_pb2.LOG_LEVEL_ERROR: "error"}
_LEVELS = {"info": control_pb2.LOG_LEVEL_INFO, **{word: number for number, word in _SEVERITIES.items()}}


class LogHandlers(OperatorHandlers):
    """Handlers about the server's log."""

    async def ListLogLines(
        self, request: control_pb2.ListLogLinesRequest, context: Context
    ) -> control_pb2.ListLogLinesResponse:
        """List the kept log lines, the newest first."""
        await self._authenticator.operator(context)
        limit, scope = page_size(request.limit), current_scope()
        found = self._recent_log.newest(
            severity=_SEVERITIES.get(request.level, "info"),
            before=int(request.after) if request.after.isascii() and request.after.isdigit() else None,
            limit=None if scope.project is not None else limit,
        )
        if scope.project is not None:
            found = (await self._services.reader.run(_of_project, found, scope.project))[:limit]
        return control_pb2.ListLogLinesResponse(
            lines=[message_of(control_pb2.LogLine, one, level=_LEVELS[one.level]) for one in found],
            next=str(found[-1].number) if len(found) == limit else "",
        )


def _of_project(connection: Connection, lines: Sequence[LogLine], project: str) -> list[LogLine]:
    """The lines about a project's runs and participants."""
    by_run = projects.of_runs(connection, {one.run for one in lines if one.run})
    by_participant = projects.of_participants(connection, {one.participant for one in lines if one.participant})

    def about(line: LogLine) -> set[str | None]:
        of_run = {by_run.get(line.run)} if line.run else set[str | None]()
        return of_run | ({by_participant.get(line.participant)} if line.participant else set())

    return [line for line in lines if about(line) == {project}]
