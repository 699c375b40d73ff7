"""A token bucket that several share: each has an equal part for itself, and takes what others leave."""

from __future__ import annotations

import math

from atoll.server.rpc.buckets import Bucket

ACTIVE_S = 10.0
"""Seconds without a taking after which nothing is kept for one of those who share."""


class FairBucket:
    """One bucket for all. A part of what it holds is kept for each of those who took lately.

    One may take from its own part. What no part holds is free for whoever comes first, so an idle one's rate is not
    lost, and all together never take more than one bucket of this capacity and rate gives.

    Args:
        capacity: units that all may take at once.
        per_s: units a second, for all.
        now: seconds, monotonic.
    """

    def __init__(self, capacity: float, per_s: float, now: float) -> None:
        self._capacity = capacity
        self._per_s = per_s
        self._all = Bucket(capacity, per_s, now)
        self._parts: dict[str, _Part] = {}

    def take(self, who: str, now: float) -> bool:
        """Take one unit; False, and nothing is taken, if neither its own part nor the rest has one."""
        self._join(who, now)
        if len(self._parts) == 1:
            self._parts[who].taken_at = now
            return not self._all.take(1.0, now)
        share = 1.0 / len(self._parts)
        for part in self._parts.values():
            part.gain(self._capacity * share, self._per_s * share, now)
        own, held = self._parts[who], self._all.level(now)
        own.taken_at = now
        if own.level >= 1.0 and held >= 1.0:
            own.level -= 1.0
        elif held - sum(math.floor(part.level) for part in self._parts.values()) < 1.0:
            return False
        self._all.take(1.0, now)
        return True

    def _join(self, who: str, now: float) -> None:
        """Count one among those who share, and idle ones no more; a new one's part is what no other part holds."""
        idle = [name for name, part in self._parts.items() if name != who and now - part.taken_at >= ACTIVE_S]
        for name in idle:
            del self._parts[name]
        if len(self._parts) == 1:
            for only in self._parts.values():
                only.fill(self._all.level(now), now)
        if who not in self._parts:
            kept = sum(part.level for part in self._parts.values())
            self._parts[who] = _Part(max(0.0, self._all.level(now) - kept), now)


class _Part:
    """What is kept for one of those who share."""

    __slots__ = ("_at", "level", "taken_at")

    def __init__(self, level: float, now: float) -> None:
        self.level = level
        self.taken_at = self._at = now

    def fill(self, level: float, now: float) -> None:
        """Hold so much: all that there is, for one who is alone."""
        self.level, self._at = level, now

    def gain(self, capacity: float, per_s: float, now: float) -> None:
        """Let time pass."""
        self.level = min(capacity, self.level + max(0.0, now - self._at) * per_s)
        self._at = max(self._at, now)
