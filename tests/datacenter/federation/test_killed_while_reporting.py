"""A silo is killed at each point of a report: the next update includes exactly what the server lacks."""

from __future__ import annotations

import os
import signal
from asyncio import create_task, to_thread
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest

from atoll.client._transfer.task_transfers import TaskTransfers
from atoll.datacenter.federation.journal import Journal
from atoll.datacenter.federation.residuals import Residuals
from atoll.datacenter.federation.silo import Silo
from atoll.datacenter.job import SiloJob
from atoll.wire.encoding import Encoding, as_received
from tests.client.harness import Federation
from tests.datacenter.federation import test_silo
from tests.datacenter.federation.test_silo import JOB, RANKS, Weights, flat, initial_of, soon
from tests.datacenter.ranks import RankError, run_ranks
from tests.system.diloco import Worker

KEPT = JOB | {"checkpoint": {"folder": "kept", "every_steps": 1, "asynchronous": False}}
ENCODING = Encoding.BFLOAT16
Floats = npt.NDArray[np.float32]


def dying(original: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    """Kill this process when a function is called the second time: in the second round."""
    calls = 0

    def call(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        result = original(*given, **named) if after or calls < 2 else None
        if calls >= 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return call


POINTS: dict[str, tuple[type, str, bool]] = {
    "before the errors are kept": (Residuals, "keep", False),
    "once they are kept": (Residuals, "keep", True),
    "before the update is entered": (Journal, "enter", False),
    "once it is entered": (Journal, "enter", True),
    "before it is reported": (TaskTransfers, "report", False),
    "once it has counted": (TaskTransfers, "report", True),
    "once the answer is entered": (Journal, "answered", True),
    "at the end of the round": (Silo, "_end", True),
}
UNCOUNTED = list(POINTS)[:5]
ALWAYS = ("once it is entered", "once it has counted")


def take_part(address: str, folder: str, rounds: int, point: str = "") -> Any:
    """Run a rank, which is killed in its second round at this point."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(test_silo, "JOB", KEPT))
        if point:
            kind, name, after = POINTS[point]
            stack.enter_context(patch.object(kind, name, dying(getattr(kind, name), after=after)))
        return test_silo.take_part(address, folder, rounds)


@pytest.fixture
def initial(tmp_path: Path) -> Weights:
    return initial_of(KEPT, tmp_path)


@pytest.fixture
async def server(initial: Weights) -> AsyncIterator[Federation]:
    async with Federation(initial) as made:
        yield made


def assert_sent(found: npt.NDArray[np.float64], change: Floats, lost: Floats) -> Floats:
    """Check that an update is a change plus earlier errors, rounded; return the errors after it."""
    assert np.mean(found == as_received(change + lost, ENCODING)) > 0.95
    return (change + lost - found).astype(np.float32)


@pytest.mark.parametrize(
    "point", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.every_fault) for name in POINTS]
)
async def test_errors_are_neither_sent_twice_nor_lost(
    server: Federation, initial: Weights, tmp_path: Path, point: str
) -> None:
    worker = Worker.of(SiloJob.model_validate(KEPT), tmp_path)
    (first, _), (second, _), (third, _) = (worker.trained(initial) for _ in range(3))
    silo = create_task(to_thread(run_ranks, take_part, RANKS, server.address, str(tmp_path), 3, point))
    await soon(server.hellos)
    server.invite(0, encoding=ENCODING)
    lost = assert_sent(server.update_of(await soon(server.reports)), flat(first), np.zeros_like(flat(first)))
    server.invite(1, encoding=ENCODING)
    with pytest.raises(RankError):
        await silo
    while not server.replies.empty():
        server.replies.get_nowait()

    rounds = 2 if point in UNCOUNTED else 1
    again = create_task(to_thread(run_ranks, take_part, RANKS, server.address, str(tmp_path), rounds))
    await soon(server.hellos)
    if point in UNCOUNTED:  # the server still waits for this round
        assert server.reports.empty()
        server.invite(1, encoding=ENCODING)
    report = await soon(server.reports)
    assert report.round.round == 1
    lost = assert_sent(server.update_of(report), flat(second), lost)
    server.invite(2, encoding=ENCODING)
    report = await soon(server.reports)
    while report.round.round == 1:  # asked about again
        report = await soon(server.reports)
    assert_sent(server.update_of(report), flat(third), lost)
    assert [steps for steps, _ in await again] == [3 * test_silo.STEPS] * RANKS
