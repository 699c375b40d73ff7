"""Tests that need a GPU are left out where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Count them as deselected; ``pytest tests/datacenter/gpu`` on a machine with a GPU runs them."""
    if torch.cuda.is_available():
        return
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if item not in ours]
