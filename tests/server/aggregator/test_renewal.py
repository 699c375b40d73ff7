"""Renewal goes on when a renewed certificate cannot be kept: a full disk ends no aggregator."""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atoll.server.aggregator import daemon
from atoll.server.aggregator.config import AggregatorConfig
from atoll.server.aggregator.daemon import AggregatorDaemon
from atoll.server.errors import SetupError
from tests.patience import WAIT_S

FULL = OSError(errno.ENOSPC, "No space left on device")


def ends_in(seconds: float) -> Any:
    now = time.time()
    return SimpleNamespace(not_before=now - 1.0, not_after=now + seconds)


async def renewing(at: AggregatorDaemon, link: Any, enough: asyncio.Event) -> None:
    task = asyncio.create_task(at._renew(link, "server:7400"))
    waiting = asyncio.create_task(enough.wait())
    await asyncio.wait({task, waiting}, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    assert not task.done(), task
    assert waiting.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AggregatorDaemon:
    monkeypatch.setattr(daemon, "RENEWAL_RETRY_S", 0.0)
    return AggregatorDaemon(AggregatorConfig(data=tmp_path))


async def test_a_server_certificate_that_cannot_be_written_is_asked_for_again(
    at: AggregatorDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, enough = [0], asyncio.Event()

    async def full(*_: object, **__: object) -> None:
        tries[0] += 1
        if tries[0] == 3:
            enough.set()
        raise FULL

    monkeypatch.setattr(daemon, "server_certificate", full)
    at._credential = cast("Any", SimpleNamespace(peer=ends_in(1e6)))
    at._serving = cast("Any", SimpleNamespace(not_before=0.0, pair=ends_in(0.0)))
    await renewing(at, SimpleNamespace(), enough)


async def test_a_credential_that_cannot_be_written_is_used(
    at: AggregatorDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough = asyncio.Event()

    def unwritten(_: Path) -> None:
        raise SetupError("aggregator.credential", "the credential cannot be written", "")

    fresh = SimpleNamespace(peer=ends_in(1e6), write=unwritten)

    async def renewed(*_: object) -> Any:
        return fresh

    monkeypatch.setattr(daemon, "renewed", renewed)
    at._credential = cast("Any", SimpleNamespace(peer=ends_in(0.0)))
    at._serving = cast("Any", SimpleNamespace(not_before=time.time(), pair=ends_in(1e6)))
    await renewing(at, SimpleNamespace(reconnect=enough.set), enough)
    assert at._credential is fresh
