import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from atoll.server.telemetry.context import about, known, remember
from atoll.server.threads import in_thread, to_end
from tests.patience import WAIT_S


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


class Work:
    """A function that a thread is in until the test lets it end."""

    def __init__(self) -> None:
        self.began, self.go, self.ended = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.began.set()
        assert self.go.wait(WAIT_S)
        self.ended.set()

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.began.wait, WAIT_S)


async def test_a_function_runs_in_a_thread_of_the_executor(executor: ThreadPoolExecutor) -> None:
    thread = await in_thread(executor, threading.get_ident)
    assert thread == executor.submit(threading.get_ident).result() != threading.get_ident()
    assert await in_thread(executor, sorted, [1, 3, 2], reverse=True) == [3, 2, 1]


@pytest.mark.parametrize("waits", [False, True])
async def test_its_exception_is_raised(executor: ThreadPoolExecutor, waits: bool) -> None:
    running = in_thread(executor, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        await (to_end(running) if waits else running)


async def test_its_log_lines_have_the_callers_fields(executor: ThreadPoolExecutor) -> None:
    with about(run="run-1", round="2.0"):
        assert await in_thread(executor, lambda: dict(known())) == {"run": "run-1", "round": "2.0"}
    assert await in_thread(executor, lambda: dict(known())) == {}


async def test_what_it_adds_to_the_context_stays_in_it(executor: ThreadPoolExecutor) -> None:
    await in_thread(executor, partial(remember, run="run-1"))
    assert dict(known()) == {}
    assert await in_thread(executor, lambda: dict(known())) == {}


async def test_a_cancelled_caller_leaves_the_thread_to_finish(executor: ThreadPoolExecutor) -> None:
    work = Work()
    calling = asyncio.create_task(_awaited(in_thread(executor, work)))
    await work.has_begun()
    calling.cancel()
    await asyncio.wait({calling}, timeout=WAIT_S)
    assert calling.cancelled()
    assert not work.ended.is_set()
    work.go.set()
    assert await asyncio.to_thread(work.ended.wait, WAIT_S)


async def test_a_function_whose_caller_is_cancelled_before_it_begins_never_runs(executor: ThreadPoolExecutor) -> None:
    first, second = Work(), Work()
    running = in_thread(executor, first)
    calling = asyncio.create_task(_awaited(in_thread(executor, second)))
    await first.has_begun()
    calling.cancel()
    await asyncio.wait({calling}, timeout=WAIT_S)
    first.go.set()
    await running
    await in_thread(executor, threading.get_ident)  # the executor has one thread, so this one comes after both
    assert not second.began.is_set()


async def test_to_end_a_cancelled_caller_waits_for_its_thread(executor: ThreadPoolExecutor) -> None:
    """The thread may use what the caller holds: files, memory maps, an accumulator."""
    work = Work()
    calling = asyncio.create_task(to_end(in_thread(executor, work)))
    await work.has_begun()
    calling.cancel()
    done, _ = await asyncio.wait({calling}, timeout=0.05)
    assert not done
    work.go.set()
    await asyncio.wait({calling}, timeout=WAIT_S)
    assert calling.cancelled()
    assert work.ended.is_set()


async def test_to_end_the_callers_cancellation_hides_the_functions_exception(executor: ThreadPoolExecutor) -> None:
    work = Work()

    def fail() -> None:
        work()
        raise OSError

    calling = asyncio.create_task(to_end(in_thread(executor, fail)))
    await work.has_begun()
    calling.cancel()
    work.go.set()
    await asyncio.wait({calling}, timeout=WAIT_S)
    assert calling.cancelled()


async def _awaited(running: asyncio.Future[None]) -> None:
    await running
