"""The pages of each project, with a separate connection and cache: no project's data reaches another's pages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from atoll.console.guard import session_or_none
from atoll.operator.errors import OperatorError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from atoll.console.sessions import Access
    from atoll.operator import Operator

MAX_KEPT = 64
"""Maximum number of projects whose pages are kept."""


class ByProject:
    """ASGI application: answers with the pages of the project that the session has chosen.

    Until a project is chosen, it shows the connection's own project. If the operator has roles in several projects but
    not in all, it shows the first of these projects.

    Args:
        operator: the connection; it is not closed here.
        pages: makes the pages of a connection.
        access: knows what each session has chosen.
    """

    def __init__(self, operator: Operator, pages: Callable[[Operator], ASGIApp], access: Access) -> None:
        self._operator = operator
        self._pages = pages
        self._access = access
        self._lock = threading.Lock()
        self._own: str | None = None
        self._made: dict[str, tuple[Operator, ASGIApp]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        session = session_or_none(HTTPConnection(scope)) if scope["type"] == "http" else None
        chosen = None if session is None else self._access.project(session)
        if chosen is None and session is not None:
            chosen = await run_in_threadpool(self._first)
        await self._of(self._operator.project if chosen is None else chosen)(scope, receive, send)

    def _first(self) -> str:
        """The project that a session shows until the operator chooses one."""
        if self._own is None:
            self._own = self._operator.project
            try:
                me = self._operator.whoami()
            except OperatorError:  # the page shows the error
                self._own = None
                return self._operator.project
            if me.role == "unspecified" and not me.project and me.projects:
                self._own = me.projects[0].project
        return self._own

    def _of(self, project: str) -> ASGIApp:
        with self._lock:
            found = self._made.get(project)
            if found is None:
                while len(self._made) >= MAX_KEPT:
                    oldest, _ = self._made.pop(next(iter(self._made)))
                    if oldest is not self._operator:
                        oldest.close()
                own = project == self._operator.project
                operator = self._operator if own else self._operator.within(project)
                found = self._made[project] = operator, self._pages(operator)
            return found[1]
