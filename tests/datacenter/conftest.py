"""Mark the tests whose module starts ranks: processes that each load torch and communicate."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from unittest.mock import patch

import pytest

_STARTING = {"run_ranks", "started_ranks"}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark by the module's imports, so that no test is forgotten."""
    module = item.getparent(pytest.Module)
    if module is not None and _STARTING & vars(module.obj).keys():
        item.add_marker(pytest.mark.ranks)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import the modules whose tests start ranks in the process that ranks are forked from: some take a second."""
    modules = [item.getparent(pytest.Module) for item in session.items if item.get_closest_marker("ranks")]
    names = sorted({module.obj.__name__ for module in modules if module is not None})
    if ranks := sys.modules.get("tests.datacenter.ranks"):  # imported, and torch with it, by a test that uses it
        ranks.preload(names)


@pytest.fixture(autouse=True)
def frozen_again() -> Iterator[None]:
    """Freeze what the suite has loaded if a trainer in this process unfroze it: each collection would take a second."""
    unfreeze, calls = gc.unfreeze, 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        unfreeze()

    with patch.object(gc, "unfreeze", counted):
        yield
    if calls:
        gc.freeze()
