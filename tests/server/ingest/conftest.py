from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atoll.server.aggregation import warm
from atoll.server.ingest.spool import Spool


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile the kernels before a test's clock runs."""
    warm()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool
