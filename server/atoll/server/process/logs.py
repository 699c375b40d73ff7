"""Logging: one line per event, as text or JSON, with run, round and participant where known.

The values of these fields come from the line itself (``extra``) or from its task (``telemetry.context``). A line about
one of the server's own errors has its ``code``, whether the error is an argument or the logged exception.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator

from atoll.server.errors import LogText, ServerError
from atoll.server.telemetry.context import known
from atoll.server.telemetry.recent_log import LOGGER, RecentLog
from atoll.server.telemetry.refusal_log import one_line
from atoll.wire.status import ErrorDetail

FIELDS = ("run", "round", "participant", "operator", "code")
MAX_VALUE_CHARS = 100
"""Maximum length of a run's name, which callers choose; longer names are cut."""


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (RFC 3339, UTC), level, logger, message, and the known ``FIELDS``."""

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        entry: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update({name: getattr(record, name) for name in FIELDS if hasattr(record, name)})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    """One line of text, with the known ``FIELDS`` at its end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is the base class's
        """See ``logging.Formatter``."""
        record.message = one_line(record.message, len(record.message))
        facts = " ".join(f"{name}={one_line(str(getattr(record, name)))}" for name in FIELDS if hasattr(record, name))
        return f"{super().formatMessage(record)} [{facts}]" if facts else super().formatMessage(record)


class ContextFilter(logging.Filter):
    """Adds missing known values of ``FIELDS`` to each record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See ``logging.Filter``; every record passes."""
        for name, value in known().items():
            if not hasattr(record, name):
                setattr(record, name, one_line(value, MAX_VALUE_CHARS) if isinstance(value, str) else value)
        code = _code_of(record)
        if code and not hasattr(record, "code"):
            record.code = code
        return True


def _code_of(record: logging.LogRecord) -> str:
    arguments = record.args if isinstance(record.args, tuple) else ()
    raised = record.exc_info[1] if record.exc_info else None
    for found in (raised, *arguments):
        detail = found.detail if isinstance(found, ServerError) else found
        code = getattr(detail, "code", "")
        if isinstance(code, str) and code and isinstance(detail, ErrorDetail | LogText):
            return code
    return ""


@contextlib.contextmanager
def kept_in(recent: RecentLog) -> Iterator[None]:
    """Inside the block, this process's log lines are also kept for operators."""
    logger = logging.getLogger(LOGGER)
    logger.addHandler(recent)
    try:
        yield
    finally:
        logger.removeHandler(recent)


_settings = ("info", False)


def logging_settings() -> tuple[str, bool]:
    """This process's level and format, for processes started from it."""
    return _settings


def configure_logging(level: str, *, as_json: bool) -> None:
    """Log to standard error at ``level`` (debug, info, warning, error) and above."""
    global _settings  # noqa: PLW0603 - logging is a matter of the process as a whole
    _settings = (level, as_json)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    handler.addFilter(ContextFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Alembic logs every schema check and numba its compiler passes, which is too much
    for noisy in ("alembic", "numba"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
