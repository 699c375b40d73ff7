from __future__ import annotations

import pytest
from hypothesis import settings

from atoll.server.aggregation import warm

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    """Compile before the first test, so that none of them waits for it."""
    warm()
