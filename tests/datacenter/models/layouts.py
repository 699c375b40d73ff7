"""Layouts for the tests of all models."""

from __future__ import annotations

import pytest

SHARDED_AND_CUT = (
    pytest.param(2, {"data_parallel": {"method": "zero3"}}, id="zero3-2"),
    pytest.param(2, {"mesh": {"tp": 2}}, id="tp-2"),
)
"""Ranks and sections that every model must support."""
