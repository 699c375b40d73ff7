"""With what status a rank ends: what the launcher does next depends on it."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Status of a rank that has failed."""

    FAILED = 1
    """Something unforeseen: starting again may help."""
    LOST_PEER = 75
    """Another rank is gone, and this one's connections with it: a symptom."""
    HUNG = 76
    """A collective did not end in time."""
    FINAL = 78
    """The job, its data or its checkpoint are wrong: starting again cannot help."""
