"""A token bucket that several takers share: each has an equal part of its own and may use free units."""

from __future__ import annotations

import math

from atoll.server.rpc.buckets import Bucket

ACTIVE_S = 10.0
"""Seconds without a request after which a taker's part is released."""
SETTLE_S = 0.1
"""Longest time in seconds for which the count of free units may be old."""


class FairBucket:
    """One bucket, in which an equal part is reserved for each taker of the last ``ACTIVE_S`` seconds.

    A taker uses its own part first, and then units that no part reserves, so an idle taker's rate is not lost. All
    takers together never exceed one bucket of this capacity and rate.

    A call's work does not grow with the number of takers: all parts are visited only after ``SETTLE_S`` seconds or as
    many calls as there are parts. In between, units that the bucket gains are reserved, and none becomes free.

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
        self._free = 0.0
        self._settled_at = now
        self._calls = 0

    def take(self, who: str, now: float) -> bool:
        """Take one unit; return False if neither the taker's part nor the free units have one."""
        own = self._part(who, now)
        if len(self._parts) == 1:
            return not self._all.take(1.0, now)
        own.gain(self._capacity / len(self._parts), self._per_s / len(self._parts), now)
        if own.level < 1.0 and self._free < 1.0:
            return False
        if self._all.take(1.0, now):
            return False
        if own.level >= 1.0:
            own.level -= 1.0
        else:
            self._free -= 1.0
        return True

    def _part(self, who: str, now: float) -> _Part:
        """The taker's part, which begins empty; the parts are settled if it is time."""
        own = self._parts.get(who)
        if own is not None:
            own.taken_at = now
        self._calls += 1
        if self._calls >= len(self._parts) or now - self._settled_at >= SETTLE_S:
            self._settle(now)
        if own is None:
            own = self._join(who, now)
        return own

    def _join(self, who: str, now: float) -> _Part:
        """Add a taker's part; a taker that was alone until now reserves all units, up to its new part."""
        alone = next(iter(self._parts.values())) if len(self._parts) == 1 else None
        own = self._parts[who] = _Part(0.0, now)
        if alone is not None:
            alone.fill(self._all.level(now), now)
            self._settle(now)
        return own

    def _settle(self, now: float) -> None:
        """Release the parts of idle takers, add to the others what they gained, and count the units that are free."""
        for name in [name for name, part in self._parts.items() if now - part.taken_at >= ACTIVE_S]:
            del self._parts[name]
        for part in self._parts.values():
            part.gain(self._capacity / len(self._parts), self._per_s / len(self._parts), now)
        self._free = self._all.level(now) - sum(math.floor(part.level) for part in self._parts.values())
        self._settled_at, self._calls = now, 0


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
