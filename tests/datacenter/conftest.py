"""Mark the tests whose module starts ranks: processes that each load torch and communicate."""

from __future__ import annotations

import pytest

_STARTING = {"run_ranks", "started_ranks"}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark by the module's imports, so that no test is forgotten."""
    module = item.getparent(pytest.Module)
    if module is not None and _STARTING & vars(module.obj).keys():
        item.add_marker(pytest.mark.ranks)
