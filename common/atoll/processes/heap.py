"""Settings of the C heap for a process that receives chunks."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_TRIM_BYTES = 16 << 20
_ARENAS = 1
"""Number of heaps shared by threads. Memory freed in one heap cannot be used by another, so there are few."""
_MMAP_BYTES = 32 << 20
"""The largest value that glibc allows: above the size of a message, below that of a model's array."""


def keep_chunks() -> None:
    """Keep the memory of freed messages in the heap for the next ones (glibc only).

    By default the heap returns the memory of each chunk to the system, which then clears it page by page for the next:
    a third of the processor time of receiving. In exchange up to 16 MiB at the end of the heap may stay unused.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def give_back() -> None:
    """Return all unused memory of the heap to the system, including gaps between used blocks (glibc only)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
