from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from atoll.server.aggregation import warm
from atoll.server.runs.tasks import Tasks
from tests.server.rpc.world import Participant, World
from tests.server.runs.federation import Federation, opened


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile the kernels before a test's clock runs."""
    warm()


@pytest.fixture
async def federation(tmp_path: Path) -> AsyncIterator[Federation]:
    async with opened(tmp_path / "data") as made:
        yield made


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path / "data") as opened_world:
        yield opened_world


@pytest.fixture
async def alice(world: World) -> Participant:
    return await world.participant("acme")


HELD_FROM_S = 30.0
Timers = dict[str, tuple[float, Callable[[], None]]]


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    """Timers of runs of 30 s and more, by name: their seconds, and the function by which a test fires them."""
    held: Timers = {}
    after = Tasks.after

    def hold(tasks: Tasks, name: str, delay_s: float, call: Callable[[], None]) -> None:
        if delay_s < HELD_FROM_S:
            after(tasks, name, delay_s, call)
        else:
            held[name] = delay_s, call

    monkeypatch.setattr(Tasks, "after", hold)
    return held
