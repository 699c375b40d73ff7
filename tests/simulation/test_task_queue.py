from __future__ import annotations

from collections.abc import Sequence

from atoll.simulation.task_queue import BATCH_S, LARGEST_BATCH, QueuedTask, TaskQueue
from atoll.simulation.tasks import TaskRequest

KEY = ("run", 0, 0)


def queue(seconds: Sequence[float], known: int = 1) -> TaskQueue:
    """A queue of one task for each number; the first ``known`` participants have taken this long before."""
    made = TaskQueue()
    for number, took in enumerate(seconds[:known]):
        made.took(f"p{number}", took)
    made.add(KEY, [TaskRequest(f"p{number}", number, b"") for number in range(len(seconds))])
    return made


def names(batch: Sequence[QueuedTask]) -> list[str]:
    return [task.request.participant for task in batch]


async def test_the_longest_come_first() -> None:
    tasks = queue([1.0, 3.0, 2.0], known=3)
    assert [names(tasks.batch((), 1)) for _ in range(4)] == [["p1"], ["p2"], ["p0"], []]


async def test_a_batch_is_one_task_until_a_duration_is_known() -> None:
    assert len(queue([0.0] * 100, known=0).batch((), 1)) == 1


async def test_batches_shrink_with_the_queue() -> None:
    tasks, sizes = queue([1e-6] * 200), []
    while len(tasks):
        sizes.append(len(tasks.batch((), 2)))
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1], sum(sizes)) == (50, 1, 200)
    assert len(queue([1e-6] * 2000).batch((), 2)) == LARGEST_BATCH


async def test_a_batch_takes_no_longer_than_it_may_unless_one_task_does() -> None:
    assert len(queue([BATCH_S / 4] * 100).batch((), 1)) == 4
    assert len(queue([10 * BATCH_S] * 100).batch((), 1)) == 1


async def test_a_worker_gets_the_participants_that_it_has() -> None:
    assert names(queue([5.0] * 6, known=6).batch({"p1"}, 1)) == ["p1"]
    assert names(queue([5.0] * 6, known=6).batch({"p5"}, 1)) == ["p0"]  # too far from the front


async def test_what_was_lost_is_done_first_and_alone() -> None:
    tasks = queue([1e-6] * 100)
    lost = tasks.batch((), 1)
    for task in reversed(lost):
        tasks.again(task)
    assert [names(tasks.batch((), 1)) for _ in lost] == [[name] for name in names(lost)]


async def test_awaited_tasks_stay_when_their_round_is_forgotten() -> None:
    tasks = queue([1.0, 1.0])
    (first,) = tasks.batch((), 1)
    first.awaited = True
    tasks.again(first)
    tasks.drop("other", (9, 9))
    assert len(tasks) == 2
    tasks.drop("run", (0, 0))
    assert tasks.clear() == [first]
