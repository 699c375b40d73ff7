"""Divides the rate of check-ins among projects by max-min fairness: none waits for another's participants.

A project that wants less than an equal share gets what it wants. Projects that want more share the rest equally
(Bertsekas and Gallager, "Data Networks", 1992, 6.5.2). Each project may also use capacity that no project wants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from atoll.server.config.check_in_settings import CheckInSettings
from atoll.server.runs.expected_returns import SecondLoads


class Sharer(Protocol):
    """A project that shares the rate."""

    @property
    def population(self) -> int:
        """Number of its participants that are expected to return."""
        ...

    @property
    def gathers(self) -> bool:
        """Whether the project's participants return together."""
        ...

    def demand_per_s(self, now: float) -> float:
        """Check-ins per second that it currently wants, on average."""
        ...


def fair_shares(capacity: float, demands: Sequence[float]) -> list[float]:
    """The max-min fair shares of a capacity, in the order of the demands."""
    shares, left = [0.0] * len(demands), capacity
    for done, place in enumerate(sorted(range(len(demands)), key=demands.__getitem__)):
        shares[place] = min(demands[place], left / (len(demands) - done))
        left -= shares[place]
    return shares


class SharedRate:
    """The rate of ``per_s``, divided among projects, and their load together. Shares are computed once a second.

    Args:
        settings: rates and times.

    Attributes:
        load: the expected check-ins of all projects.
    """

    def __init__(self, settings: CheckInSettings) -> None:
        self.load = SecondLoads()
        self._settings = settings
        self._sharers: list[Sharer] = []
        self._second = -1
        self._shares: dict[Sharer, float] = {}
        self._meeting: dict[Sharer, float] = {}
        self._reserved: dict[int, float] = {}

    def join(self, sharer: Sharer) -> None:
        """Add a project that shares the rate."""
        self._sharers.append(sharer)
        self._second = -1

    def share(self, sharer: Sharer, now: float) -> float:
        """Check-ins per second that a project may plan: its share plus the unused rate, but at least an equal share."""
        if len(self._sharers) == 1:
            return self._settings.per_s
        self._work_out(now)
        return self._shares[sharer]

    def meeting_rate(self, sharer: Sharer, now: float) -> float:
        """As ``share``, for projects whose participants return together: they all return in the same seconds."""
        if len(self._sharers) == 1:
            return self._settings.per_s
        self._work_out(now)
        return self._meeting[sharer]

    def load_at(self, at: float) -> float:
        """Expected check-ins in that second, plus the room reserved for participants that return together then."""
        reserved = self._reserved.get(int(at % self._settings.period_s), 0.0) if self._reserved else 0.0
        return self.load.at(at) + reserved

    def _work_out(self, now: float) -> None:
        if int(now) == self._second:
            return
        self._second, per_s = int(now), self._settings.per_s
        self._shares = _with_the_rest(per_s, self._sharers, [one.demand_per_s(now) for one in self._sharers])
        gathering = [one.population if one.gathers else 0 for one in self._sharers]
        self._meeting = _with_the_rest(per_s, self._sharers, gathering)
        self._reserved = _filled(fair_shares(per_s, gathering), gathering)


def _with_the_rest(per_s: float, sharers: Sequence[Sharer], demands: Sequence[float]) -> dict[Sharer, float]:
    """The rate that each project may plan: at least an equal share, even if few of its participants are expected.

    A project has no expected participants while all of them wait in their calls.
    """
    shares = fair_shares(per_s, demands)
    left = max(0.0, per_s - sum(shares))
    active = sum(1 for demand in demands if demand > 0.0)
    return {
        one: max(share + left, per_s / (active if demand > 0.0 else active + 1))
        for one, share, demand in zip(sharers, shares, demands, strict=True)
    }


def _filled(rates: Sequence[float], counts: Sequence[int]) -> dict[int, float]:
    """Number of check-ins in each second after a common return time, at these rates."""
    found: dict[int, float] = defaultdict(float)
    for rate, count in zip(rates, counts, strict=True):
        second, left = 0, float(count)
        while left > 0.0 and rate > 0.0:
            found[second] += min(rate, left)
            second, left = second + 1, left - rate
    return found
