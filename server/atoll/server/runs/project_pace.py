"""When a project's participants without a stream check in again (Bonawitz et al. 2019, arXiv 1902.01046, 2.3).

A *small* population gets one common time to return; otherwise a cohort would never be complete. The returns of a
*large* one are spread, so that the load is flat and enough participants are always available. It returns as often as
the project's runs need, but no more often than the project's share of the rate that the server can handle.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from atoll.server.config.check_in_settings import DEFAULT_CHECK_INS, CheckInSettings
from atoll.server.runs.expected_returns import ExpectedReturns
from atoll.server.runs.shared_rate import SharedRate

SURPLUS = 2.0
"""Factor by which the participants that wait in their calls should exceed those that runs need."""
CHOICES = 4
"""The least loaded of this many random seconds is taken, so the fullest second is little above the mean (Mitzenmacher,
"The Power of Two Choices in Randomized Load Balancing", 2001)."""
LEAST_SHARE = 0.5
"""Share of the rate that is reserved for expected participants, however many unexpected ones check in."""
SOONEST_S = 1.0


@dataclass(frozen=True, slots=True)
class NextReturn:
    """The time of a participant's next check-in.

    Attributes:
        after_s: seconds from now.
        when_done: whether it may also return as soon as it has finished its task.
    """

    after_s: float
    when_done: bool


class ProjectPace:
    """Chooses return times. Single-threaded: only the event loop uses it.

    After a restart the population is unknown: it is learned as participants come.

    Args:
        clock: epoch seconds.
        settings: rates and times.
        chance: spreads returns.
        rate: the rate that this project shares with others; None: it is alone.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        settings: CheckInSettings = DEFAULT_CHECK_INS,
        chance: random.Random | None = None,
        rate: SharedRate | None = None,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._chance = chance or random.Random()  # noqa: S311 - spreads load, hides nothing
        self._rate = SharedRate(settings) if rate is None else rate
        self._expected = ExpectedReturns(clock(), self._rate.load)
        self._needs: dict[str, int] = {}
        self._need = 0
        self._together = False
        self._rate.join(self)

    @property
    def population(self) -> int:
        """Number of participants that are expected to return."""
        return len(self._expected)

    @property
    def gathers(self) -> bool:
        """Whether the participants return together."""
        return self._together

    def demand_per_s(self, now: float) -> float:
        """Check-ins per second that this project's runs and return times need, plus the unexpected ones."""
        self._expected.advance(now)
        every_s = self.settings.period_s if self._together else self._wanted_s(self.population)
        return self.population / every_s + self._expected.unexpected_per_s

    @property
    def return_spread_s(self) -> float:
        """Seconds over which this population should spread its return after it found no server."""
        return self.population / self._rate.share(self, self._clock())

    def need(self, run: str, participants: int) -> None:
        """Note how many participants without a stream a run wants to draw from; 0: none."""
        self._need += participants - self._needs.pop(run, 0)
        if participants:
            self._needs[run] = participants

    def arrived(self, participant: str) -> None:
        """Note a check-in, of either kind, before ``next_return`` or ``put_off``."""
        self._expected.arrived(participant, self._clock())

    def next_return(self, participant: str) -> NextReturn:
        """The next check-in of a participant that has just checked in."""
        now, count = self._clock(), self.population + 1
        self._together = self._gathers(now, count)
        at = self._meeting(now) if self._together else self._spread(now, count)
        self._expected.expect(participant, at, now, self._remember_s(count))
        return NextReturn(at - now, when_done=self._together)

    def put_off(self, participant: str) -> float:
        """Seconds after which a participant that is turned away under overload may retry: the first free second."""
        now = self._clock()
        at = self._expected.first_free(now + SOONEST_S, self._rate.share(self, now)) + self._chance.random()
        self._expected.expect(participant, at, now, self._remember_s(self.population + 1))
        return at - now

    def _gathers(self, now: float, count: int) -> bool:
        """Whether this many participants must return together for runs to find enough, and are few enough to do so.

        False while many unexpected participants check in: after a restart, a large population looks small at first.
        """
        settings, rate_per_s = self.settings, self._rate.meeting_rate(self, now)
        at_once = count * settings.hold_s / settings.period_s
        if at_once >= SURPLUS * max(self._need, 1) or count / rate_per_s > settings.period_s / 2:
            return False
        return self._expected.unexpected_per_s <= LEAST_SHARE * rate_per_s

    def _meeting(self, now: float) -> float:
        """The common return time: the next multiple of the period, plus as many seconds as the rate requires."""
        period_s, room_per_s = self.settings.period_s, self._room_per_s(self._rate.meeting_rate(self, now))
        at = math.ceil((now + SOONEST_S) / period_s) * period_s
        while (there := self._expected.load_at(at)) >= room_per_s:
            at += 1.0
        return at + self._chance.random() * min(1.0, (there + 1) / room_per_s)

    def _spread(self, now: float, count: int) -> float:
        middle_s = max(self._wanted_s(count), count / self._room_per_s(self._rate.share(self, now)))
        moments = [now + self._chance.uniform(0.5, 1.5) * middle_s for _ in range(CHOICES)]
        return min(moments, key=self._rate.load_at)

    def _room_per_s(self, rate_per_s: float) -> float:
        """The part of a rate that unexpected check-ins do not use."""
        return max(LEAST_SHARE * rate_per_s, rate_per_s - self._expected.unexpected_per_s)

    def _wanted_s(self, count: int) -> float:
        """Seconds between one participant's check-ins with which runs always find enough participants."""
        settings = self.settings
        if not settings.hold_s:
            return settings.period_s
        wanted_per_s = SURPLUS * max(self._need, 1) / settings.hold_s
        return min(max(count / wanted_per_s, settings.period_s), max(settings.period_s, settings.longest_s))

    def _remember_s(self, count: int) -> float:
        """Seconds for which a participant that does not return still counts; longer than any time to return."""
        settings = self.settings
        share = self._rate.share(self, self._clock())
        return 2.0 * max(settings.longest_s, settings.period_s, count / (LEAST_SHARE * share))
