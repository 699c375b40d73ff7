"""The console as an ASGI application."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from atoll.console.actions import Actions
from atoll.console.by_project import ByProject
from atoll.console.entering import Entering
from atoll.console.guard import Guard, session_or_none
from atoll.console.handlers import Pages
from atoll.console.ledger_pages import LedgerPages
from atoll.console.reading import Reader
from atoll.console.templating import page
from atoll.operator.errors import BadInputError, NotPermittedError, OperatorError, UnreachableError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from atoll.console.live import Live
    from atoll.console.sessions import Access
    from atoll.console.site import Site
    from atoll.operator import Operator

_STATUSES: tuple[tuple[type[OperatorError], int], ...] = (
    (UnreachableError, 503),
    (NotPermittedError, 403),
    (BadInputError, 400),
    (OperatorError, 404),
)
"""The HTTP status for each kind of error. Most other errors mean that something does not exist, hence the 404."""


def application(operator: Operator, site: Site, access: Access, live: Live) -> Guard:
    """The console of one server.

    Args:
        operator: the connection; it is not closed here.
        site: where the console is reached.
        access: who may use it.
        live: its streams of events, for the owner to stop.
    """
    pages = functools.partial(_pages, site=site, access=access, live=live)
    return Guard(ByProject(operator, pages, access), site, access)


def _pages(operator: Operator, *, site: Site, access: Access, live: Live) -> Starlette:
    """The pages of one connection."""
    reader = Reader(operator)
    actions, ledger = Actions(reader, access), LedgerPages(reader)
    pages, entering = Pages(reader, live, access), Entering(access, site)
    routes = [
        Route("/open/{token}", entering.open),
        Route("/leave", entering.leave, methods=["POST"]),
        Route("/project", actions.choose_project, methods=["POST"]),
        Route("/", pages.runs),
        Route("/runs/{run}", pages.run),
        Route("/runs/{run}/events", pages.run_events),
        Route("/runs/{run}/rounds/{label}", pages.round),
        Route("/runs/{run}/statistics", pages.statistics),
        Route("/runs/{run}/pause", actions.pause, methods=["POST"]),
        Route("/runs/{run}/resume", actions.resume, methods=["POST"]),
        Route("/runs/{run}/extend", actions.extend, methods=["POST"]),
        Route("/runs/{run}/cancel", actions.confirm_cancel),
        Route("/runs/{run}/cancel", actions.cancel, methods=["POST"]),
        Route("/runs/{run}/privacy", ledger.run),
        Route("/start", actions.new),
        Route("/start", actions.start, methods=["POST"]),
        Route("/privacy", ledger.populations),
        Route("/privacy/{population:path}", ledger.population),
        Route("/participants", pages.participants),
        Route("/participants/{participant}", pages.participant),
        Route("/events/runs", pages.runs_events),
        Route("/events/participants", pages.participants_events),
        Route("/log", pages.log),
        Route("/events/log", pages.log_events),
        Mount("/static", StaticFiles(packages=[("atoll.console", "static")])),
    ]
    made = Starlette(
        routes=routes,
        exception_handlers={
            OperatorError: functools.partial(_failed, operator.address, access),
            HTTPException: functools.partial(_refused, operator.address, access),
        },
    )
    made.router.redirect_slashes = False  # redirects would have this socket's scheme, not the proxy's
    return made


def _failed(address: str, access: Access, request: Request, error: Exception) -> Response:
    """Answer with the error of the server, or say that it cannot be reached."""
    found = error if isinstance(error, OperatorError) else OperatorError(str(error))
    status = next(number for kind, number in _STATUSES if isinstance(found, kind))
    return _error_page(address, access, request, status, found.message, found.remedy)


def _refused(address: str, access: Access, request: Request, error: Exception) -> Response:
    """Answer a request for an unknown page, or an invalid request, with an error page."""
    status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, str(error))
    return _error_page(address, access, request, status, detail, "")


def _error_page(address: str, access: Access, request: Request, status: int, message: str, remedy: str) -> Response:
    session = session_or_none(request)
    chosen = "" if session is None else access.project(session)
    said = {"message": message, "remedy": remedy, "chosen": chosen is not None, "project": chosen or ""}
    return page("error.html.j2", said, address=address, session=session, status_code=status)
