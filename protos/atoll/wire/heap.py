"""How the C heap of a process that receives chunks gives memory back."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_TRIM_BYTES = 16 << 20
_ARENAS = 1
"""Heaps that threads share: what is freed in one serves no other, and each has holes of its own."""
_MMAP_BYTES = 32 << 20
"""The largest that glibc admits: above any message, below any array of a model's size."""


def keep_chunks() -> None:
    """Let the heap keep the memory of messages for the next ones (glibc; nothing happens elsewhere).

    Left alone it returns the memory of each chunk to the system, which then clears it page by page for the next: a
    third of the processor time of receiving. Up to 16 MiB at the end of the heap may so stay unused.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def give_back() -> None:
    """Return to the system what the heap holds and nobody uses, also between what is in use (glibc, see above)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
