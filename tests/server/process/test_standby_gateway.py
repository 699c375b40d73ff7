"""A standby keeps its link to the active server, however that ends; the rest is tested with processes."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from atoll.server.errors import ForbiddenError
from atoll.server.gateway.site.link import Link
from atoll.server.process import standby_gateway
from tests.patience import WAIT_S


class Ending:
    """A link that ends with each of some errors, and then holds."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.holds = asyncio.Event()

    async def run(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.holds.set()
        await asyncio.Event().wait()


async def test_the_link_is_opened_again_after_a_refusal_and_after_an_unforeseen_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Participants here would otherwise wait for ever: they are connected to this server, which hears nothing."""
    monkeypatch.setattr(standby_gateway, "REFUSED_S", 0.0)
    link = Ending(ForbiddenError("gateway.unknown", "not known", "enrol"), asyncio.InvalidStateError("RPC is done"))
    keeping = asyncio.create_task(standby_gateway._keep(cast(Link, link)))
    try:
        async with asyncio.timeout(WAIT_S):
            await link.holds.wait()
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    assert "does not accept this one: not known" in caplog.text
    assert "InvalidStateError: RPC is done" in caplog.text
