from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atoll.server.identity import Authority
from atoll.server.stores import Store
from tests.server.access.certificate_rig import Clock, Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    store, clock = Store.open(tmp_path / "data"), Clock()
    yield Rig(store, Authority.open(tmp_path / "ca", now=clock()), clock)
    store.close()
