"""Checks whether the server can do its work, for ``/readyz``."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from atoll.server.errors import ServerError
from atoll.server.telemetry.endpoint import Page
from atoll.server.telemetry.recent import Recent

DATABASE_S = 5.0
"""Seconds after which a test write counts as failed."""
BLOBS_S = 4.0
"""Seconds after which a query to the blob store counts as failed."""
FRESH_S = 1.0
"""Minimum seconds between two checks of disk and database, regardless of the number of probes."""


@dataclass(frozen=True)
class Checks:
    """The inputs of readiness.

    Attributes:
        serving: whether ports are open and the server is neither starting nor stopping.
        write: makes a small durable write to the database.
        shortage: why the disk has no room for more work; empty if it has room.
        workers: number of serving and of configured workers.
        blobs: why models cannot currently be stored or read; empty if they can.
    """

    serving: Callable[[], bool]
    write: Callable[[], Awaitable[None]]
    shortage: Callable[[], str]
    workers: Callable[[], tuple[int, int]]
    blobs: Callable[[], Awaitable[str]]


class Readiness:
    """Finds the problems that make the server not ready."""

    def __init__(self, checks: Checks, clock: Callable[[], float] = time.monotonic) -> None:
        self._checks = checks
        self._found = Recent(self._look, FRESH_S, clock)

    async def problems(self) -> dict[str, str]:
        """Problems by check, at most ``FRESH_S`` old; empty if the server is ready. A stop shows at once."""
        if not self._checks.serving():
            return {"serving": "the server is starting or stopping"}
        return await self._found()

    async def _look(self) -> dict[str, str]:
        found = {}
        running, wanted = self._checks.workers()
        if running < wanted:
            found["workers"] = f"{running} of {wanted} ingest workers serve"
        if shortage := self._checks.shortage():
            found["disk"] = shortage
        if problem := await self._blobs():
            found["blobs"] = problem
        try:
            async with asyncio.timeout(DATABASE_S):
                await self._checks.write()
        except TimeoutError:
            found["database"] = f"a write took over {DATABASE_S:g} s"
        except ServerError as error:
            found["database"] = f"cannot be written: {error.detail.code}"
        return found

    async def _blobs(self) -> str:
        try:
            async with asyncio.timeout(BLOBS_S):
                return await self._checks.blobs()
        except TimeoutError:
            return f"the store of models did not answer within {BLOBS_S:g} s"


def page_of(found: dict[str, str]) -> Page:
    """The answer of ``/readyz``: 200, or 503 with the problems."""
    body = json.dumps({"ready": not found, "problems": found}) + "\n"
    status = HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK
    return Page(body.encode(), "application/json", status)
