from __future__ import annotations

import pytest

from atoll.server.aggregation import warm


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    """Compile before the first test, so that no test waits for it."""
    warm()
