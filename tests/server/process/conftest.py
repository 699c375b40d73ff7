from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atoll.server.aggregation import warm
from tests.server.rpc.world import Participant, World


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile the kernels before a test's clock runs."""
    warm()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
async def alice(world: World) -> Participant:
    return await world.participant("acme")
