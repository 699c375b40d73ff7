"""Marks of the silo's tests."""

from __future__ import annotations

import pytest

from atoll.datacenter.torch_version import TORCH

needs_torch_2_13 = pytest.mark.skipif(TORCH < (2, 13), reason="torch 2.11 and 2.12 cannot: docs/datacenter.md")
