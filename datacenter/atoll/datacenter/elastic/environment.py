"""The environment of ranks: what PyTorch reads there once, and what the user sets stays."""

from __future__ import annotations

import os

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""The first is that of torch 2.10 and later; the others still count."""
_EXPANDABLE = "expandable_segments:True"


def grow_segments() -> None:
    """Let the GPU's allocator grow its segments instead of fragmenting memory; call before the GPU is used.

    Without it a step can fail with gigabytes free between tensors (torchtitan's recipes set it). The user's own value
    of any of the variables stays.
    """
    if not any(name in os.environ for name in ALLOCATOR_VARIABLES):
        os.environ[ALLOCATOR_VARIABLES[0]] = _EXPANDABLE
