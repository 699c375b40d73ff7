"""The newest lines of the server's log, for operators who cannot read the log of its machine.

Over the network an operator sees less than the log has: the text of Atoll's own errors without file names, only the
type of other errors, only the last part of paths, and no traceback. Lines of other libraries are left out.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Mapping
from pathlib import PurePath

from atoll.server.control import LogLine
from atoll.server.errors import LogText, ServerError
from atoll.server.telemetry.refusal_log import one_line

MAX_KEPT = 500
"""Number of lines kept per severity, so that neither a busy run's notices nor failing participants displace errors."""
MAX_MESSAGE_CHARS = 500
MAX_FACT_CHARS = 100
LOGGER = "atoll"
"""The logger whose lines, and those of its children, are kept."""
SEVERITIES: Mapping[str, int] = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_FACTS = ("run", "participant", "operator", "code")


class RecentLog(logging.Handler):
    """Keeps the newest lines at level ``info`` and above. Thread-safe."""

    def __init__(self, kept: int = MAX_KEPT) -> None:
        super().__init__(logging.INFO)
        self._numbers = itertools.count(1)
        self._kept: Mapping[str, deque[LogLine]] = {level: deque(maxlen=kept) for level in SEVERITIES}

    def emit(self, record: logging.LogRecord) -> None:
        """Store a line; see ``logging.Handler``, whose lock is held."""
        try:
            line = _line(next(self._numbers), record)
        except Exception:  # noqa: BLE001 - as every handler: a line that cannot be made must not stop its caller
            self.handleError(record)
            return
        self._kept[line.level].append(line)

    def newest(self, *, severity: str, before: int | None, limit: int | None) -> list[LogLine]:
        """The newest lines of at least the given severity, newest first.

        Args:
            severity: info, warning or error.
            before: only lines with a smaller number; None for all.
            limit: maximum number of lines; None for all.
        """
        self.acquire()
        try:
            kept = list(itertools.chain.from_iterable(self._kept.values()))
        finally:
            self.release()
        wanted = [
            one
            for one in kept
            if SEVERITIES[one.level] >= SEVERITIES[severity] and (before is None or one.number < before)
        ]
        return sorted(wanted, key=lambda one: one.number, reverse=True)[:limit]


def _line(number: int, record: logging.LogRecord) -> LogLine:
    facts = {name: one_line(str(getattr(record, name, "")), MAX_FACT_CHARS) for name in _FACTS}
    level = "error" if record.levelno >= logging.ERROR else "warning" if record.levelno >= logging.WARNING else "info"
    return LogLine(
        number=number,
        logged_at=record.created,
        level=level,
        logger=record.name,
        message=one_line(_message(record), MAX_MESSAGE_CHARS),
        **facts,
    )


def _message(record: logging.LogRecord) -> str:
    """The line's text for the network."""
    arguments = record.args
    if isinstance(arguments, tuple) and arguments:
        text = str(record.msg) % tuple(_travels(one) for one in arguments)
    elif arguments:
        text = record.getMessage()
    else:
        text = str(_travels(record.msg))
    raised = record.exc_info[1] if record.exc_info else None
    return text if raised is None else f"{text} ({_travels(raised)})"


def _travels(value: object) -> object:
    """A value of a line, without parts that must not leave the machine."""
    match value:
        case LogText():
            return value.travels
        case ServerError():
            return str(value.detail)
        case OSError():
            return value.strerror or type(value).__name__
        case BaseException():
            return type(value).__name__
        case PurePath():
            return value.name
        case _:
            return value
