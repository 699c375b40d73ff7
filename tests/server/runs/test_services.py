import asyncio
import threading

import pytest

from tests.patience import WAIT_S
from tests.server.runs.federation import Federation


async def test_a_blocking_function_runs_in_a_thread(federation: Federation) -> None:
    assert await federation.services.call(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await federation.services.call(lambda: 1 // 0)


async def test_a_cancelled_caller_waits_for_its_thread(federation: Federation) -> None:
    """The thread may use the caller's resources: files, memory maps, an accumulator."""
    began, go, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert go.wait(WAIT_S)
        ended.set()

    calling = asyncio.create_task(federation.services.call(work))
    assert await asyncio.to_thread(began.wait, WAIT_S)
    calling.cancel()
    done, _ = await asyncio.wait({calling}, timeout=0.05)
    assert not done
    go.set()
    await asyncio.wait({calling}, timeout=WAIT_S)
    assert calling.cancelled()
    assert ended.is_set()
