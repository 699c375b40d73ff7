"""The client's log on standard error: lines of text or of JSON, with run, round and attempt."""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from atoll.client._telemetry.users_errors import users_frame
from atoll.text.printable import printable

if TYPE_CHECKING:
    from atoll.client.task import RoundKey

_MORE = "  --log-level debug shows the whole traceback"
_round: ContextVar[RoundKey | None] = ContextVar("atoll_round", default=None)


@contextmanager
def about(key: RoundKey) -> Iterator[None]:
    """Tag everything that this thread or task logs inside the context with this round."""
    token = _round.set(key)
    try:
        yield
    finally:
        _round.reset(token)


class RoundFilter(logging.Filter):
    """Adds the current round to each record, if there is one."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See ``logging.Filter``; every record passes."""
        record.about_round = _round.get()
        return True


USERS_CODE = {"users_code": True}
"""``extra`` of a record about an exception of the participant's own code."""


class TextLines(logging.Formatter):
    """One line of text, with the round at its end.

    Args:
        whole: write the whole traceback of an exception of the participant's code too, not just where it was raised.
    """

    def __init__(self, *, whole: bool = True) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._whole = whole

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        error = record.exc_info[1] if record.exc_info else None
        if self._whole or error is None or not getattr(record, "users_code", False):
            return super().format(record)
        brief = copy.copy(record)  # other handlers write the same record
        where = users_frame(error)
        brief.exc_info = None
        place = printable(f"{where.filename}, line {where.lineno}, in {where.name}: {where.line}")
        brief.exc_text = f"  {place}\n{_MORE}"
        return super().format(brief)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the base class's name
        """See ``logging.Formatter``."""
        record.message = printable(record.message)
        key: RoundKey | None = getattr(record, "about_round", None)
        line = super().formatMessage(record)
        return line if key is None else f"{line} [run={key.run} round={_label(key)}]"


def _label(key: RoundKey) -> str:
    """``7`` for the seventh round, ``7.2`` for its second attempt, as commands and the server's log write it."""
    again = f".{key.attempt + 1}" if key.attempt else ""
    return f"{key.round + 1}{again}"


class JsonLines(logging.Formatter):
    """One JSON object per line: time (RFC 3339, UTC), level, logger, message, and run, round, attempt if known."""

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, object] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        key: RoundKey | None = getattr(record, "about_round", None)
        if key is not None:
            entry.update(run=key.run, round=key.round, attempt=key.attempt)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


OBSERVED = {"observed": True}
"""``extra`` of a record that an observer also receives as an event."""


def is_unobserved(record: logging.LogRecord) -> bool:
    """Whether only the log contains this record."""
    return not getattr(record, "observed", False)


def same_output() -> bool:
    """Whether standard output and standard error end in the same terminal or file."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):  # closed, or not a file
        return False


def configure_logging(level: str, *, as_json: bool, observed: bool = True) -> None:
    """Log to standard error at ``level`` (debug, info, warning, error) and above.

    Without ``observed`` it omits records that are also events, because an observer prints them to the same place.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines(whole=level == "debug"))
    handler.addFilter(RoundFilter())
    if not observed:
        handler.addFilter(is_unobserved)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
