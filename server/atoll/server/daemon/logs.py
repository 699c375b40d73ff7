"""Logging: one line per event, for people or as JSON, with run, round and participant where they are known."""

from __future__ import annotations

import json
import logging
import sys
import time

from atoll.server.daemon.audit import one_line

FIELDS = ("run", "round", "participant")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (RFC 3339, UTC), level, logger, message, and what is known of ``FIELDS``."""

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
    """One line for people, with what is known of ``FIELDS`` at its end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is the base class's
        """See ``logging.Formatter``."""
        record.message = one_line(record.message, len(record.message))
        known = " ".join(f"{name}={getattr(record, name)}" for name in FIELDS if hasattr(record, name))
        return f"{super().formatMessage(record)} [{known}]" if known else super().formatMessage(record)


_settings = ("info", False)


def logging_settings() -> tuple[str, bool]:
    """Level and form in force here, for processes started from this one."""
    return _settings


def configure_logging(level: str, *, as_json: bool) -> None:
    """Log to standard error from ``level`` (debug, info, warning, error) on."""
    global _settings  # noqa: PLW0603 - logging is a matter of the process as a whole
    _settings = (level, as_json)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Alembic tells of every schema check, numba of its compiler's passes: both drown the rest.
    for noisy in ("alembic", "numba"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
