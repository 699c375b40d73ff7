"""Safe logging of other parties' text on one line, and a limit on lines about refusals."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from atoll.server.errors import ServerError
from atoll.text.printable import printable

REFUSAL_INTERVAL_S = 10.0
"""Seconds within which a further refusal of the same subject is not logged."""
_SUBJECTS = 4096
_MAX_CHARS = 200


def one_line(text: str, most: int = _MAX_CHARS) -> str:
    """Another party's text for the log, with unprintable characters escaped."""
    return printable(text[:most])


class RefusalLog:
    """Warns of refused callers, once per subject and ``REFUSAL_INTERVAL_S``; tracks the most recent subjects.

    Args:
        log: logger for the warnings.
        clock: seconds, monotonic.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._warned_at: OrderedDict[str, float] = OrderedDict()

    def warn(self, subject: str, error: Exception) -> None:
        """Warn that ``subject`` (a participant id or operator name) was refused, and why."""
        now, name = self._clock(), one_line(subject)
        if now - self._warned_at.get(name, float("-inf")) < REFUSAL_INTERVAL_S:
            return
        self._warned_at[name] = now
        self._warned_at.move_to_end(name)
        if len(self._warned_at) > _SUBJECTS:
            self._warned_at.popitem(last=False)
        code = error.detail.code if isinstance(error, ServerError) else type(error).__name__
        self._log.warning("refused: %s", one_line(str(error)), extra={"participant": name, "code": code})
