from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atoll.server.aggregation import warm
from tests.server.daemon.federation import Federation, opened
from tests.server.rpc.world import Participant, World


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
