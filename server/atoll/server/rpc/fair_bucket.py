"""A token bucket that several takers share: each has an equal part of its own and may use free units."""

from __future__ import annotations

import math

from atoll.server.rpc.buckets import Bucket

ACTIVE_S = 10.0
"""Seconds without a request after which a taker's part is released."""


class FairBucket:
    """One bucket, in which an equal part is reserved for each taker of the last ``ACTIVE_S`` seconds.

    A taker uses its own part first, and then units that no part reserves, so an idle taker's rate is not lost. All
    takers together never exceed one bucket of this capacity and rate.

    Args:
        capacity: units that all takers together may take at once.
        per_s: units per second of all takers together.
        now: seconds, monotonic.
    """

    def __init__(self, capacity: float, per_s: float, now: float) -> None:
        self._capacity = capacity
        self._per_s = per_s
        self._all = Bucket(capacity, per_s, now)
        self._parts: dict[str, _Part] = {}

    def take(self, who: str, now: float) -> bool:
        """Take one unit; return False if neither the taker's part nor the free units have one."""
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
        """Add a taker, and drop idle ones; a new taker's part begins with the units that no other part reserves."""
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
    """The units reserved for one taker."""

    __slots__ = ("_at", "level", "taken_at")

    def __init__(self, level: float, now: float) -> None:
        self.level = level
        self.taken_at = self._at = now

    def fill(self, level: float, now: float) -> None:
        """Set the level; a single taker gets all units of the bucket."""
        self.level, self._at = level, now

    def gain(self, capacity: float, per_s: float, now: float) -> None:
        """Add the units gained since the last call."""
        self.level = min(capacity, self.level + max(0.0, now - self._at) * per_s)
        self._at = max(self._at, now)
