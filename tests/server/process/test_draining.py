from __future__ import annotations

import asyncio
import time

import pytest

from atoll.server.ingest.transfer_meter import TransferMeter
from atoll.server.process import draining
from atoll.server.process.draining import drain
from tests.patience import WAIT_S


async def test_without_uploads_it_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "QUIET_S", WAIT_S)
    assert await drain(TransferMeter(), 2 * WAIT_S) > WAIT_S


async def test_it_waits_for_an_upload_and_for_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "QUIET_S", 0.2)
    meter = TransferMeter()
    with meter.upload():
        drained = asyncio.create_task(drain(meter, WAIT_S))
        await asyncio.sleep(0)
    await drained
    assert time.monotonic() - meter.last_upload_at >= 0.2


async def test_an_upload_that_begins_meanwhile_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "QUIET_S", 0.1)
    meter = TransferMeter()
    with meter.upload():
        drained = asyncio.create_task(drain(meter, WAIT_S))
        await asyncio.sleep(0)
        second = meter.upload()
        second.__enter__()
    await asyncio.sleep(0.3)
    assert not drained.done()
    second.__exit__(None, None, None)
    assert await drained > 0


async def test_it_is_bounded_and_says_what_is_cut(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(draining, "PROGRESS_S", 0.05)
    caplog.set_level("INFO")
    meter = TransferMeter()
    with meter.upload(), meter.upload():
        assert await drain(meter, 0.3) == 0.0
    assert "of at most 0.3 s: 2 uploads under way" in caplog.text
    assert "2 uploads cut after 0.3 s (drain_s)" in caplog.text


async def test_it_waits_for_rounds_that_are_being_released() -> None:
    released = asyncio.Event()

    async def settled() -> None:
        await released.wait()

    drained = asyncio.create_task(drain(TransferMeter(), WAIT_S, settled))
    await asyncio.sleep(0.05)
    assert not drained.done()
    released.set()
    assert await drained > 0


async def test_a_release_that_the_last_report_begins_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round is being released while the upload is open; a server that looked then stopped in mid-release."""
    monkeypatch.setattr(draining, "QUIET_S", 0.1)
    releasing, asked = asyncio.Event(), asyncio.Event()

    async def settled() -> None:
        asked.set()
        assert releasing.is_set()

    meter = TransferMeter()
    with meter.upload():
        drained = asyncio.create_task(drain(meter, WAIT_S, settled))
        await asyncio.sleep(0.05)
        assert not asked.is_set()
    releasing.set()
    assert await drained > 0
    assert asked.is_set()


async def test_no_time_is_none() -> None:
    meter = TransferMeter()
    with meter.upload():
        assert await drain(meter, 0.0) == 0.0
