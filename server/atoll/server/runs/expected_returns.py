"""The participants that are expected to check in again, and their number in each second."""

from __future__ import annotations

MEASURED_S = 10
"""Seconds over which unexpected check-ins are counted before their rate is adjusted."""
_WEIGHT = 0.5


class SecondLoads:
    """Expected numbers of participants in each coming second."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._second = 0

    def at(self, at: float) -> int:
        """The number of that second."""
        return self._counts.get(int(at), 0)

    def add(self, second: int) -> None:
        """Count one more in a second."""
        self._counts[second] = self._counts.get(second, 0) + 1

    def remove(self, second: int) -> None:
        """Count one less in a second, unless that has passed."""
        if left := self._counts.get(second):
            self._counts[second] = left - 1

    def advance(self, second: int) -> None:
        """Forget the seconds that have passed."""
        if second - self._second > len(self._counts):
            self._counts = {one: count for one, count in self._counts.items() if one >= second}
        else:
            for passed in range(self._second, second):
                self._counts.pop(passed, None)
        self._second = max(self._second, second)

    def __len__(self) -> int:
        return len(self._counts)


class ExpectedReturns:
    """The expected participants of a project, about 200 bytes each, and the expected load of each coming second.

    Args:
        now: epoch seconds.
        total: the load of all projects, which they are counted in too.
    """

    def __init__(self, now: float, total: SecondLoads) -> None:
        self._rate = 0.0
        self._second = self._measured_from = int(now)
        self._unexpected = 0
        self._load, self._total = SecondLoads(), total
        self._full_until = 0
        # Two generations: a participant that stays away for a whole generation is forgotten without a search.
        self._due: dict[str, int] = {}
        self._older: dict[str, int] = {}
        self._turn_at, self._remember_s = now, 0.0

    def __len__(self) -> int:
        return len(self._due) + len(self._older)

    @property
    def unexpected_per_s(self) -> float:
        """Unexpected check-ins per second: the last measured rate, or that of the current period if higher."""
        return max(self._rate, self._unexpected / max(1, self._second - self._measured_from))

    def arrived(self, participant: str, now: float) -> None:
        """A participant has checked in: it is no longer expected."""
        self._advance(int(now))
        due = self._forget(participant)
        if due is None:
            self._unexpected += 1

    def expect(self, participant: str, at: float, now: float, remember_s: float) -> None:
        """Expect a participant at ``at``, and forget those that stay away for more than ``remember_s``."""
        self._remember_s = remember_s
        self.advance(now)
        self._forget(participant)
        second = int(at)
        self._due[participant] = second
        self._load.add(second)
        self._total.add(second)

    def advance(self, now: float) -> None:
        """Measure, and forget those that stay away for too long, whether others come or not."""
        self._advance(int(now))
        if now >= self._turn_at:
            self._older = self._due if now < self._turn_at + self._remember_s else {}
            self._due = {}
            self._turn_at = now + self._remember_s

    def load_at(self, at: float) -> int:
        """Number of participants expected in that second."""
        return self._load.at(at)

    def first_free(self, soonest: float, per_s: float) -> float:
        """The first second from ``soonest`` on in which fewer than ``per_s`` participants are expected."""
        second = max(int(soonest), self._full_until)
        while self._load.at(second) >= per_s:
            second += 1
        self._full_until = second
        return max(soonest, float(second))

    def _forget(self, participant: str) -> int | None:
        due = self._due.pop(participant, None)
        if due is None:
            due = self._older.pop(participant, None)
        if due is not None:
            self._load.remove(due)
            self._total.remove(due)
        return due

    def _advance(self, second: int) -> None:
        """Forget the load of seconds that have passed, and update the measured rate."""
        if second <= self._second:
            return
        self._load.advance(second)
        self._total.advance(second)
        self._second = second
        measured_s = second - self._measured_from
        if measured_s >= MEASURED_S:
            rate = self._unexpected / measured_s
            # one long period without calls counts like many short ones
            weight = _WEIGHT ** (measured_s / MEASURED_S)
            self._rate = rate + (self._rate - rate) * weight
            self._unexpected, self._measured_from = 0, second
