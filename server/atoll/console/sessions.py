"""One-time links and the sessions that they open. Sessions are only in memory, so they end with the console."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

LINK_S = 600.0
"""Seconds for which a link can be used."""
SESSION_S = 12 * 3600.0
"""Seconds after which a session ends, even if it is in use."""
MAX_SESSIONS = 32
"""Maximum number of sessions; one more ends the oldest."""
_TOKEN_BYTES = 32


@dataclass(frozen=True)
class Session:
    """The session of a browser that signed in with a link.

    Attributes:
        name: digest of its cookie; the cookie itself is not kept.
        form_token: the token that its forms must send.
        until_s: when it ends, by the clock of ``Access``.
    """

    name: str
    form_token: str
    until_s: float


class Access:
    """Sessions of browsers, each begun with a one-time link. Safe to use from several threads.

    Args:
        now_s: monotonic clock, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._link: tuple[str, float] | None = None
        self._sessions: dict[str, Session] = {}
        self._projects: dict[str, str] = {}

    def make_link(self) -> str:
        """The token of a new link; an earlier link that was not used becomes invalid."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        with self._lock:
            self._link = (_digest(token), self._now_s() + LINK_S)
        return token

    def redeem(self, token: str) -> str | None:
        """The cookie of a new session; None if the link was used, replaced, or is too old."""
        with self._lock:
            if self._link is None or not secrets.compare_digest(self._link[0], _digest(token)):
                return None
            until_s, self._link = self._link[1], None
            if self._now_s() >= until_s:
                return None
            return self._opened()

    def session(self, cookie: str) -> Session | None:
        """The session that a cookie names; None if there is none, or it has ended."""
        with self._lock:
            found = self._sessions.get(_digest(cookie))
            return found if found is not None and self._now_s() < found.until_s else None

    def is_open(self, session: Session) -> bool:
        """Whether a session has not ended."""
        with self._lock:
            return session.name in self._sessions and self._now_s() < session.until_s

    def choose(self, session: Session, project: str) -> None:
        """Show this project on the session's pages from now on; empty: all projects."""
        with self._lock:
            if session.name in self._sessions:
                self._projects[session.name] = project

    def forget_choice(self, session: Session) -> None:
        """Remove the session's choice of a project, so that its pages show the default."""
        with self._lock:
            self._projects.pop(session.name, None)

    def project(self, session: Session) -> str | None:
        """The project that was chosen for a session; None if none was chosen."""
        with self._lock:
            return self._projects.get(session.name)

    def end(self, session: Session) -> None:
        """End a session at once."""
        with self._lock:
            self._sessions.pop(session.name, None)
            self._projects.pop(session.name, None)

    def _opened(self) -> str:
        now_s = self._now_s()
        self._sessions = {name: one for name, one in self._sessions.items() if now_s < one.until_s}
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._projects = {name: one for name, one in self._projects.items() if name in self._sessions}
        cookie = secrets.token_urlsafe(_TOKEN_BYTES)
        made = Session(_digest(cookie), secrets.token_urlsafe(_TOKEN_BYTES), now_s + SESSION_S)
        self._sessions[made.name] = made
        return cookie


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
