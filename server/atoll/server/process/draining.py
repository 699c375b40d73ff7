"""Draining before a stop: uploads end and are reported, and closing rounds are released, as far as time allows.

Unfinished work is not lost. A participant whose upload is cut off sends the missing part to the next server: the rest
if that server has the same data directory, otherwise all of it. A sum that is cut off is computed again from the
accepted updates.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from atoll.server.ingest.transfer_meter import TransferMeter
from atoll.text.figures import counted

log = logging.getLogger(__name__)

QUIET_S = 0.5
"""Seconds after the last stream of an upload within which its report is expected."""
PROGRESS_S = 2.0
"""Seconds between two log lines about the wait."""


async def drain(meter: TransferMeter, limit_s: float, settled: Callable[[], Awaitable[None]] | None = None) -> float:
    """Wait until no upload is under way, then until ``settled`` returns; returns the remaining seconds of ``limit_s``.

    In this order: the report of the last upload may begin a release.
    """
    until = time.monotonic() + limit_s
    async with progress_logged(lambda: f"{counted(meter.uploads_open, 'upload')} under way", limit_s):
        try:
            async with asyncio.timeout(limit_s):
                await _uploads_end(meter)
                if settled is not None:
                    await settled()
        except TimeoutError:
            if meter.uploads_open:
                log.warning("%s cut after %g s (drain_s)", counted(meter.uploads_open, "upload"), limit_s)
    return max(0.0, until - time.monotonic())


@contextlib.asynccontextmanager
async def progress_logged(waits_for: Callable[[], str], limit_s: float) -> AsyncIterator[None]:
    """Log what a stop waits for every ``PROGRESS_S`` seconds; ``limit_s``: how long it waits at most."""
    logging_progress = asyncio.create_task(_log_progress(waits_for, limit_s))
    try:
        yield
    finally:
        logging_progress.cancel()
        await asyncio.gather(logging_progress, return_exceptions=True)


async def _uploads_end(meter: TransferMeter) -> None:
    ended = asyncio.Event()
    with meter.watched(ended.set):
        while (left_s := _left_s(meter)) > 0:
            ended.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if meter.uploads_open else left_s):
                    await ended.wait()


def _left_s(meter: TransferMeter) -> float:
    """Minimum seconds for which uploads, or the report of one that has ended, are still expected."""
    return QUIET_S if meter.uploads_open else meter.last_upload_at + QUIET_S - time.monotonic()


async def _log_progress(waits_for: Callable[[], str], limit_s: float) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_S)
        log.info("draining for %.0f s of at most %g s: %s", time.monotonic() - began, round(limit_s, 1), waits_for())
