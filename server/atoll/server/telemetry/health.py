"""Whether the server can do its work: what ``/readyz`` says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from atoll.server.errors import ServerError
from atoll.server.telemetry.endpoint import Page

DATABASE_S = 5.0
"""A write that takes longer counts as a database that cannot be written."""


@dataclass(frozen=True)
class Checks:
    """What readiness hangs on.

    Attributes:
        serving: whether ports are open and the server is neither starting nor stopping.
        write: writes something small to the database, durably.
        shortage: why the disk has no room for more work; empty if it has.
        workers: serving, and wanted.
    """

    serving: Callable[[], bool]
    write: Callable[[], Awaitable[None]]
    shortage: Callable[[], str]
    workers: Callable[[], tuple[int, int]]


async def problems(checks: Checks) -> dict[str, str]:
    """What is not as it should be, by check; nothing if the server is ready."""
    if not checks.serving():
        return {"serving": "the server is starting or stopping"}
    found = {}
    running, wanted = checks.workers()
    if running < wanted:
        found["workers"] = f"{running} of {wanted} ingest workers serve"
    if shortage := checks.shortage():
        found["disk"] = shortage
    try:
        async with asyncio.timeout(DATABASE_S):
            await checks.write()
    except TimeoutError:
        found["database"] = f"a write took over {DATABASE_S:g} s"
    except ServerError as error:
        found["database"] = f"cannot be written: {error.detail.code}"
    return found


def page_of(found: dict[str, str]) -> Page:
    """The answer of ``/readyz``: 200, or 503 with what is wrong."""
    body = json.dumps({"ready": not found, "problems": found}) + "\n"
    status = HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK
    return Page(body.encode(), "application/json", status)
