"""The participants that are expected to check in again, and their number in each second."""

from __future__ import annotations

MEASURED_S = 10
"""Seconds over which unexpected check-ins are counted before their rate is adjusted."""
_WEIGHT = 0.5


class ExpectedReturns:
    """The expected participants, about 200 bytes each, and the expected load of each coming second.

    Args:
        now: epoch seconds.
    """

    def __init__(self, now: float) -> None:
        self._rate = 0.0
        self._second = self._measured_from = int(now)
        self._unexpected = 0
        self._load: dict[int, int] = {}
        self._full_until = 0
        # Two generations: a participant that stays away for a whole generation is forgotten without a search.
        self._due: dict[str, int] = {}
        self._older: dict[str, int] = {}
        self._turn_at = now

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
        self._advance(int(now))
        if now >= self._turn_at:
            self._older, self._due = self._due, {}
            self._turn_at = now + remember_s
        self._forget(participant)
        second = int(at)
        self._due[participant] = second
        self._load[second] = self._load.get(second, 0) + 1

    def load_at(self, at: float) -> int:
        """Number of participants expected in that second."""
        return self._load.get(int(at), 0)

    def first_free(self, soonest: float, per_s: float) -> float:
        """The first second from ``soonest`` on in which fewer than ``per_s`` participants are expected."""
        second = max(int(soonest), self._full_until)
        while self._load.get(second, 0) >= per_s:
            second += 1
        self._full_until = second
        return max(soonest, float(second))

    def _forget(self, participant: str) -> int | None:
        due = self._due.pop(participant, None)
        if due is None:
            due = self._older.pop(participant, None)
        if due is not None and (left := self._load.get(due)):
            self._load[due] = left - 1
        return due

    def _advance(self, second: int) -> None:
        """Forget the load of seconds that have passed, and update the measured rate."""
        if second <= self._second:
            return
        if second - self._second > len(self._load):
            self._load = {one: count for one, count in self._load.items() if one >= second}
        else:
            for passed in range(self._second, second):
                self._load.pop(passed, None)
        self._second = second
        measured_s = second - self._measured_from
        if measured_s >= MEASURED_S:
            rate = self._unexpected / measured_s
            # one long period without calls counts like many short ones
            weight = _WEIGHT ** (measured_s / MEASURED_S)
            self._rate = rate + (self._rate - rate) * weight
            self._unexpected, self._measured_from = 0, second
