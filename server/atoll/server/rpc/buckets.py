"""Token buckets: limits on the rate of calls and bytes.

A bucket holds ``capacity`` units and gains ``per_s`` units a second. A taker may take more than is left; the next one
waits until the debt is repaid. One bucket thus serves single calls as well as blocks of bytes, and a limit is exceeded
by at most one block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
_RESERVE = 1 / 16
"""A caller that came too early must wait until this share of the capacity has been regained."""


class Bucket:
    """One token bucket. Time is an argument: seconds of a monotonic clock."""

    __slots__ = ("_at", "_capacity", "_level", "_per_s")

    def __init__(self, capacity: float, per_s: float, now: float) -> None:
        self._capacity = capacity
        self._per_s = per_s
        self._level = capacity
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take an amount and return 0.0; if less than one unit is left, take nothing and return the seconds to wait."""
        wait_s = self.empty(now)
        if not wait_s:
            self._level -= amount
        return wait_s

    def give_back(self, amount: float) -> None:
        """Return an unused amount."""
        self._level += amount

    def empty(self, now: float) -> float:
        """Seconds to wait if less than one unit is left, else 0.0."""
        level = self.level(now)
        return 0.0 if level >= 1.0 else (max(1.0, self._capacity * _RESERVE) - level) / self._per_s

    def level(self, now: float) -> float:
        """Units that are left."""
        self._level = min(self._capacity, self._level + max(0.0, now - self._at) * self._per_s)
        self._at = max(self._at, now)
        return self._level


class RecentValues(Generic[K, V]):
    """Values by key, made on first use; only the most recent keys are kept.

    Args:
        make: makes a key's value.
        most: number of keys that are kept; the least recent one is dropped first.
    """

    def __init__(self, make: Callable[[], V], most: int) -> None:
        self._make = make
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()

    def __getitem__(self, key: K) -> V:
        value = self._values.get(key)
        if value is None:
            value = self._values[key] = self._make()
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        else:
            self._values.move_to_end(key)
        return value

    def __len__(self) -> int:
        return len(self._values)
