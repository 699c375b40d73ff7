from __future__ import annotations

import pytest

from atoll.server.aggregation import warm


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    """Compile before the first test, so that none of them waits for it."""
    warm()
