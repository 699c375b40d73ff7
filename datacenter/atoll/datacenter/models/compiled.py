"""Functions that are compiled separately from a model's blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled function; created on first use, because that loads the compiler."""
    return torch.compile(function)
