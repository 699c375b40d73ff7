"""Join a federation and take part in it: ``run``, ``serve`` and ``Access``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.client._state.files import locked
from atoll.client.errors import UsageError
from atoll.client.events import Observer, log_event
from atoll.client.limits import CheckInWay, Limits
from atoll.client.policy import Policy
from atoll.text.figures import counted

if TYPE_CHECKING:
    from atoll.client._connection.endpoint import Endpoint
    from atoll.client._session.session import Session, Summary
    from atoll.client.participant import Participant

INTERRUPTED = "interrupted by the participant's user"


def default_state() -> Path:
    """``$XDG_STATE_HOME/atoll/client``, by default ``~/.local/state/atoll/client``."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "atoll" / "client"


def read_token(text: str) -> str:
    """A join token from the command line: the token itself, ``@FILE``, or ``@FILE:LINE`` of a file with several.

    Raises:
        UsageError: if the file cannot be read, has no token, has several and no line is given, or has no such line.
    """
    if not text.startswith("@"):
        return text
    file, line = _file_and_line(text[1:])
    try:
        tokens = Path(file).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the join token from {file}: {error}; give the path of the file that the operator sent"
        ) from None
    if not tokens:
        raise UsageError(f"{file} is empty: ask the operator for a join token (`atoll token new -o FILE`)")
    if line is None and len(tokens) > 1:
        raise UsageError(f"{file} has {len(tokens)} join tokens: say which, for example --join @{file}:1 for the first")
    if line is not None and not 1 <= line <= len(tokens):
        raise UsageError(f"--join {text}: {file} has {counted(len(tokens), 'join token')}; give a line from 1 on")
    return tokens[(line or 1) - 1]


def _file_and_line(text: str) -> tuple[str, int | None]:
    """Split ``FILE:LINE``, unless a file has that whole name."""
    file, _, line = text.rpartition(":")
    if not file or not line.isdecimal() or len(line) > 9 or Path(text).exists():
        return text, None
    return file, int(line)


@dataclass(frozen=True)
class Access:
    """How to reach the server.

    Either with an identity, which ``join`` (a join token) enrols once and which is kept in ``state``. Or in plaintext,
    for tests on loopback: ``insecure`` with ``server`` (host:port) and the participant's ``name``. ``server`` also
    overrides the address stored in an identity.
    """

    join: str = field(default="", repr=False)
    state: Path = field(default_factory=default_state)
    server: str = ""
    insecure: bool = False
    name: str = ""

    def endpoint(self) -> Endpoint:
        """The endpoint to use; enrols with the join token if there is no identity yet.

        Raises:
            UsageError: if the arguments are incomplete for both ways. JoinTokenError, NotPermittedError,
            UnreachableError: from enrolment.
        """
        from atoll.client._connection.endpoint import Endpoint  # noqa: PLC0415  # gRPC loads when it is needed
        from atoll.client._connection.enrolment import enrol  # noqa: PLC0415
        from atoll.client._connection.identity import load  # noqa: PLC0415

        if self.insecure:
            if not self.server:
                raise UsageError("without TLS the server's address is needed (--server HOST:PORT)")
            return Endpoint(self.server, None, self.name)
        if self.name:
            raise UsageError(f"--participant {self.name} is for --insecure: with TLS the identity says who this is")
        identity = enrol(self.join, self.state) if self.join else load(self.state)
        if identity is None:
            raise UsageError(
                f"no identity in {self.state}: give a join token (--join), which the operator makes (`atoll token new`)"
            )
        return Endpoint(self.server or identity.server_address, identity)


async def serve(
    participant: Participant,
    access: Access | str = "",
    *,
    policy: Policy | None = None,
    limits: Limits | None = None,
    observer: Observer = log_event,
    labels: Mapping[str, str] | None = None,
    max_rounds: int = 0,
    check_in: CheckInWay = "stream",
) -> Summary:
    """Take part: the async form of ``run``, without signal handling. Cancel it, or set ``max_rounds``, to end it.

    Raises:
        ClientError: see ``run``.
    """
    access = access if isinstance(access, Access) else Access(access)
    with locked(access.state):
        session = _session(
            participant, access.state, await asyncio.to_thread(access.endpoint), policy, limits, check_in
        )
        session.observer, session.labels, session.max_rounds = observer, labels or {}, max_rounds
        return await session.run()


def run(
    participant: Participant,
    access: Access | str = "",
    *,
    policy: Policy | None = None,
    limits: Limits | None = None,
    observer: Observer = log_event,
    labels: Mapping[str, str] | None = None,
    max_rounds: int = 0,
    check_in: CheckInWay = "stream",
) -> Summary:
    """Join a federation and take part until interrupted, terminated, or ``max_rounds`` are done.

    ``access`` is a join token or an ``Access``; it may be left out if the default state directory has an identity. The
    first Ctrl-C abandons the current task and reports that to the server; a second one ends the process at once.

    With ``check_in="unary"`` the participant holds no connection while it has no task: it checks in with single calls,
    at the times that the server sets. This is for phones and other devices in large numbers.

    Raises:
        UsageError: for arguments in conflict, an unknown ``check_in``, a state directory in use, or a participant that
            cannot be used.
        JoinTokenError: for a join token that is truncated or mistyped.
        NotPermittedError: if the server does not accept the token or the identity.
        UnreachableError: if the server is unreachable for too long.
        KeyboardInterrupt: after Ctrl-C, once the session has ended.
    """
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise UsageError("run() blocks and an event loop runs here already (a notebook?): await serve(...) instead")
    access = access if isinstance(access, Access) else Access(access)
    with locked(access.state):
        session = _session(participant, access.state, access.endpoint(), policy, limits, check_in)
        session.observer, session.labels, session.max_rounds = observer, labels or {}, max_rounds
        summary = asyncio.run(_with_signals(session))
    if summary.reason == INTERRUPTED:
        raise KeyboardInterrupt
    return summary


def _session(
    participant: Participant,
    state: Path,
    endpoint: Endpoint,
    policy: Policy | None,
    limits: Limits | None,
    check_in: CheckInWay,
) -> Session:
    from atoll.client._session.session import Session  # noqa: PLC0415  # gRPC loads when it is needed

    return Session(participant, endpoint, state, policy or Policy(), limits or Limits(), check_in=check_in)


async def _with_signals(session: Session) -> Summary:
    """Run the session; in the main thread Ctrl-C and SIGTERM stop it cleanly."""
    if threading.current_thread() is threading.main_thread():
        loop = asyncio.get_running_loop()
        presses: list[bool] = []
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C cancels the session instead
            loop.add_signal_handler(signal.SIGINT, _interrupt, session, presses)
            loop.add_signal_handler(signal.SIGTERM, session.stop, "terminated")
    return await session.run()


def _interrupt(session: Session, presses: list[bool]) -> None:
    if presses:
        os._exit(130)
    presses.append(True)
    session.stop(INTERRUPTED)
