"""Checks that every request must pass before a page sees it, and the headers that every answer has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from atoll.console.sessions import Access, Session
    from atoll.console.site import Site

OPEN_PATH = "/open/"
"""Where links lead."""
STATIC_PATH = "/static/"
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Not no-referrer, with which browsers send `Origin: null` with the console's own forms (Fetch, "append a request
    # Origin header").
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NEEDS_LINK = (
    "This browser has no session. Open the link that `atoll console` printed: it works once, within ten minutes.\n"
    "Press Enter in the console's terminal for another link.\n"
)
_READING = ("GET", "HEAD")
_SESSION = "atoll.session"


def session_of(connection: HTTPConnection) -> Session:
    """The session of a request that the guard has let pass.

    Raises:
        LookupError: on a public path, where there is none.
    """
    found = session_or_none(connection)
    if found is None:
        raise LookupError(f"{connection.url.path} is public: its requests have no session")
    return found


def session_or_none(connection: HTTPConnection) -> Session | None:
    """The session of a request; None on a public path."""
    found: Session | None = connection.scope.get(_SESSION)
    return found


class Guard:
    """ASGI middleware: refuses requests from other sites and without a session, and sets ``HEADERS``.

    The Host header must name this console, or a page of another site could reach it by a name that it makes resolve to
    this machine (DNS rebinding). A request that changes something must come from a page of this console.
    """

    def __init__(self, app: ASGIApp, site: Site, access: Access) -> None:
        self._app = app
        self._site = site
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, request: Request) -> PlainTextResponse | None:
        host = request.headers.get("host", "")
        if host not in self._site.hosts:
            known = ", ".join(sorted(self._site.hosts))
            return PlainTextResponse(
                f"This console is called {known}, and the request names another host. "
                "If you reach it by another name or port, start it with --origin.\n",
                421,
            )
        if request.method not in _READING and not self._from_here(request):
            return PlainTextResponse("The request does not come from a page of this console.\n", 403)
        # Not `request.url`: it parses the address again, and so refuses some paths and changes others.
        if request.scope["path"].startswith((OPEN_PATH, STATIC_PATH)):
            return None
        session = self._access.session(request.cookies.get(self._site.cookie, ""))
        if session is None:
            return PlainTextResponse(_NEEDS_LINK, 401)
        request.scope[_SESSION] = session
        return None

    def _from_here(self, request: Request) -> bool:
        """Whether a page of this console sent the request, by headers that scripts of other sites cannot set."""
        fetched = request.headers.get("sec-fetch-site", "same-origin")
        return request.headers.get("origin") in self._site.origins and fetched == "same-origin"
