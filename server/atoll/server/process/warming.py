"""Compiles the aggregation kernels in a thread, while the server or worker already serves."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from atoll.server.aggregation import warm

_log = logging.getLogger(__name__)
_WORTH_LOGGING_S = 2.0


class Warming:
    """Compiles all kernels in the background. A fold compiles its own kernel if that is not yet ready.

    Args:
        executor: one of its threads does the compiling.
    """

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._stopped = threading.Event()
        executor.submit(warm, self._stopped.is_set).add_done_callback(_log_outcome)

    def stop(self) -> None:
        """Compile no further kernel; the current one takes at most about a second."""
        self._stopped.set()


def _log_outcome(compiled: Future[float]) -> None:
    if error := compiled.exception():
        _log.error("the aggregation kernels cannot be compiled", exc_info=error)
    elif (took_s := compiled.result()) > _WORTH_LOGGING_S:
        _log.info("compiled the aggregation kernels in %.1f s; later starts find them in numba's cache", took_s)
