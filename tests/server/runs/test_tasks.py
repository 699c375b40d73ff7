import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest

from atoll.server.rounds import RoundKey
from atoll.server.runs.tasks import TaskName, Tasks
from tests.patience import WAIT_S

FIRST, SECOND = RoundKey(0, 0), RoundKey(1, 0)


class Rig:
    """Tasks, and work that the test releases."""

    def __init__(self) -> None:
        self.crashes: list[tuple[TaskName, BaseException]] = []
        self.tasks = Tasks("r", lambda job, error: self.crashes.append((job, error)))
        self.begun: list[str] = []
        self.ended: list[str] = []

    async def work(self, name: str, until: asyncio.Event | None = None, tidy: asyncio.Event | None = None) -> None:
        self.begun.append(name)
        try:
            if until is not None:
                await until.wait()
        finally:
            if tidy is not None:
                await tidy.wait()
            self.ended.append(name)

    async def fail(self) -> None:
        raise KeyError("x")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    await asyncio.wait_for(made.tasks.close(), WAIT_S)


async def everything(rig: Rig) -> None:
    await asyncio.wait_for(rig.tasks.ended(lambda _: True), WAIT_S)


async def test_a_job_under_way_is_not_begun_again(rig: Rig) -> None:
    go = asyncio.Event()
    rig.tasks.start(TaskName("fold", FIRST), lambda: rig.work("one", go))
    rig.tasks.start(TaskName("fold", FIRST), lambda: rig.work("two"))
    rig.tasks.start(TaskName("fold", SECOND), lambda: rig.work("other"))
    go.set()
    await everything(rig)
    assert sorted(rig.begun) == ["one", "other"]
    rig.tasks.start(TaskName("fold", FIRST), lambda: rig.work("again"))
    await everything(rig)
    assert "again" in rig.begun


async def test_a_job_that_is_replaced_ends_before_the_new_one_begins(rig: Rig) -> None:
    """Two concurrent sums over one accumulator would corrupt each other."""
    tidy = asyncio.Event()
    rig.tasks.start(TaskName("aggregate", FIRST), lambda: rig.work("old", asyncio.Event(), tidy))
    await asyncio.sleep(0)
    rig.tasks.start(TaskName("aggregate", FIRST), lambda: rig.work("new"), replaces=True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (rig.begun, rig.ended) == (["old"], [])
    tidy.set()
    await everything(rig)
    assert (rig.begun, rig.ended) == (["old", "new"], ["old", "new"])


async def test_a_job_that_is_replaced_before_it_began_never_runs(rig: Rig) -> None:
    for name in ("one", "two", "three"):
        rig.tasks.start(TaskName("draw", FIRST), partial(rig.work, name), replaces=True)
    await everything(rig)
    assert rig.begun == ["three"]


async def test_a_crash_is_reported(rig: Rig) -> None:
    rig.tasks.start(TaskName("charge", FIRST), rig.fail)
    await everything(rig)
    await asyncio.sleep(0)
    ((job, error),) = rig.crashes
    assert (job, type(error)) == (TaskName("charge", FIRST), KeyError)


async def test_unwanted_jobs_are_ended_and_others_go_on(rig: Rig) -> None:
    go = asyncio.Event()
    rig.tasks.start(TaskName("fold", FIRST, "a"), lambda: rig.work("old", go))
    rig.tasks.start(TaskName("fold", SECOND, "a"), lambda: rig.work("new", go))
    await asyncio.sleep(0)
    await asyncio.wait_for(rig.tasks.end(lambda job: job.key == FIRST), WAIT_S)
    assert rig.ended == ["old"]
    go.set()
    await everything(rig)
    assert rig.ended == ["old", "new"]
    assert rig.crashes == []


async def test_a_job_may_end_the_others_but_not_itself(rig: Rig) -> None:
    async def finish() -> None:
        await rig.tasks.end(lambda _: True)
        rig.ended.append("finish")

    rig.tasks.start(TaskName("fold", FIRST), lambda: rig.work("fold", asyncio.Event()))
    await asyncio.sleep(0)
    rig.tasks.start(TaskName("finish"), finish)
    await everything(rig)
    assert rig.ended == ["fold", "finish"]


async def test_timers_fire_once_and_leave_nothing(rig: Rig) -> None:
    fired: asyncio.Queue[str] = asyncio.Queue()
    rig.tasks.after("deadline", 0.0, lambda: fired.put_nowait("first"))
    rig.tasks.after("deadline", 0.01, lambda: fired.put_nowait("second"))
    assert rig.tasks.due_in_s("deadline") is not None
    assert await asyncio.wait_for(fired.get(), WAIT_S) == "second"
    assert rig.tasks.due_in_s("deadline") is None
    assert fired.empty()


async def test_closing_forgets_timers_and_ends_jobs(rig: Rig) -> None:
    rig.tasks.after("retry", 60.0, lambda: None)
    rig.tasks.start(TaskName("draw", FIRST), lambda: rig.work("draw", asyncio.Event()))
    await asyncio.sleep(0)
    await asyncio.wait_for(rig.tasks.close(), WAIT_S)
    assert rig.ended == ["draw"]
    assert rig.tasks.due_in_s("retry") is None


@pytest.mark.parametrize(
    ("job", "text"), [(TaskName("finish"), "finish"), (TaskName("fold", SECOND, "alice"), "fold 2 alice")]
)
def test_names(job: TaskName, text: str) -> None:
    assert str(job) == text
