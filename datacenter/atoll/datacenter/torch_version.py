"""The version of torch, for code that depends on it."""

from __future__ import annotations

import torch


def release(version: str) -> tuple[int, int]:
    """Return major and minor number of a version such as ``2.13.0+cpu`` or ``2.12.0a0+git1234``."""
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


TORCH = release(torch.__version__)
"""Major and minor number of the torch that is installed."""
