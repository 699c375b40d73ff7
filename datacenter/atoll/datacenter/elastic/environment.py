"""Environment variables of launchers and ranks that PyTorch reads."""

from __future__ import annotations

import os

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""The first is the name since torch 2.10; the others still work."""
_EXPANDABLE = "expandable_segments:True"
_SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
_LEFT_TO_TORCH = "SIGHUP,SIGQUIT"


def grow_segments() -> None:
    """Let the GPU's allocator grow its segments instead of fragmenting memory; call before the GPU is used.

    Without it a step can fail with gigabytes free between tensors (torchtitan's recipes set it). A value that the user
    sets for any of the variables is kept.
    """
    if not any(name in os.environ for name in ALLOCATOR_VARIABLES):
        os.environ[ALLOCATOR_VARIABLES[0]] = _EXPANDABLE


def keep_stop_handlers() -> None:
    """Let a launcher's handlers of SIGTERM and SIGINT stay when torch starts ranks; call before ranks are started.

    Torch would replace them by a handler that raises at any point of the start, which could leave behind a rank that
    was started a moment before.
    """
    os.environ[_SIGNALS_VARIABLE] = _LEFT_TO_TORCH
