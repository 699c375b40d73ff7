"""Exit status of a rank; it determines what the launcher does next."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Status of a rank that has failed."""

    FAILED = 1
    """An unforeseen error: a restart may help."""
    LOST_PEER = 75
    """Another rank is gone, and this one's connections with it: a symptom."""
    HUNG = 76
    """A collective did not end in time."""
    FINAL = 78
    """The job, its data or its checkpoint are wrong: a restart cannot help."""
