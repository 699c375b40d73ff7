"""Sign in to the console with a one-time link, and sign out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import HTMLResponse, PlainTextResponse

from atoll.console.forms import form_of
from atoll.console.guard import session_of
from atoll.console.sessions import SESSION_S

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from atoll.console.sessions import Access
    from atoll.console.site import Site

# Not a redirect: the cookie is SameSite=Strict, so after a link on another site's page a browser would not send it with
# the redirected request. It sends the cookie with the request that this page makes.
_WELCOME = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Atoll console</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<meta http-equiv="refresh" content="0; url=/"></head>
<body><p><a href="/">Open the console</a></p></body></html>
"""
_DEAD = (
    "This link does not work: it was used, it is older than ten minutes, or a newer one was made.\n"
    "Press Enter in the console's terminal for another link.\n"
)


class Entering:
    """The handlers for signing in and out."""

    def __init__(self, access: Access, site: Site) -> None:
        self._access = access
        self._site = site

    def open(self, request: Request) -> Response:
        """Exchange the token of a link for a session."""
        cookie = self._access.redeem(request.path_params["token"]) if request.method == "GET" else None
        if cookie is None:
            return PlainTextResponse(_DEAD, 403)
        answer = HTMLResponse(_WELCOME)
        answer.set_cookie(
            self._site.cookie,
            cookie,
            max_age=int(SESSION_S),
            httponly=True,
            samesite="strict",
            secure=self._site.secure,
        )
        return answer

    async def leave(self, request: Request) -> Response:
        """End the session."""
        await form_of(request)
        self._access.end(session_of(request))
        answer = PlainTextResponse("You have signed out. Press Enter in the console's terminal for another link.\n")
        answer.delete_cookie(self._site.cookie, httponly=True, samesite="strict", secure=self._site.secure)
        return answer
