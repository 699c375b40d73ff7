"""Pace steering in virtual time: the server's own decisions, and the client's own delays."""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from atoll.client._connection.backoff import Backoff
from atoll.client._session.unary_check_in import until_next_s
from atoll.client.limits import Limits
from atoll.server.config.check_in_settings import CheckInSettings
from atoll.server.errors import UnavailableError
from atoll.server.rpc.return_gate import BURST_S, HEADROOM, ReturnGate
from atoll.server.runs.pace_steering import PaceSteering

MANY = 100_000
MINUTES_10 = 600.0
FACTOR = 2.0
"""The fullest second after an outage has at most this many times the mean."""


@dataclass
class Phone:
    """A participant without a stream, as the client behaves."""

    name: str
    backoff: Backoff
    spread_s: float = 0.0


@dataclass
class VirtualFederation:
    """Phones and the server's pace steering, without sockets and without waiting.

    Attributes:
        attempts: check-ins that reached the server, by second.
        admitted: those that it did not put off.
    """

    count: int
    settings: CheckInSettings = field(default_factory=CheckInSettings)
    now: float = 1_000_000.0
    outage: tuple[float, float] = (0.0, 0.0)
    attempts: Counter[int] = field(default_factory=Counter)
    admitted: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.began = self.now
        self.chance = random.Random(7)
        self.restart()
        limits = Limits()
        self.phones = [
            Phone(f"p{number}", Backoff(limits.backoff_base_s, limits.backoff_cap_s, random.Random(number)))
            for number in range(self.count)
        ]
        self.queue: list[tuple[float, int]] = []

    def restart(self) -> None:
        """The server's process is a new one: it has forgotten everything."""
        self.pace = PaceSteering(lambda: self.now, self.settings, random.Random(1))
        self.gate = ReturnGate(self.pace, lambda: self.now)

    def come_over(self, seconds: float) -> None:
        """All phones come for the first time within so many seconds, evenly."""
        self.queue = [(self.now + self.chance.uniform(0.0, seconds), number) for number in range(self.count)]
        heapq.heapify(self.queue)

    def until(self, second: float, then: Callable[[], None] = lambda: None) -> None:
        """Let time pass up to a second after the beginning."""
        while self.queue and self.queue[0][0] < self.began + second:
            self.now, number = heapq.heappop(self.queue)
            heapq.heappush(self.queue, (self.now + self._next_s(self.phones[number]), number))
        self.now = self.began + second
        then()

    def _next_s(self, phone: Phone) -> float:
        from_s, to_s = self.outage
        if from_s <= self.now - self.began < to_s:
            return phone.backoff.next_s(phone.spread_s)
        second = int(self.now - self.began)
        self.attempts[second] += 1
        try:
            self.gate.admit(phone.name, at_work=False)
        except UnavailableError as refusal:
            asked_s = refusal.detail.retry_after_s
            assert asked_s is not None
            return max(phone.backoff.next_s(), asked_s * self.chance.uniform(1.0, 1.25))
        self.admitted[second] += 1
        phone.backoff.reset()
        phone.spread_s = min(self.pace.return_spread_s, Limits().return_spread_s)
        return until_next_s(self.pace.next_return(phone.name).after_s, self.chance.random())

    def rates(self, counted: Counter[int], first: int, last: int) -> tuple[float, int]:
        """Mean and maximum per second."""
        found = [counted[second] for second in range(first, last)]
        return sum(found) / len(found), max(found)


def many() -> VirtualFederation:
    """A population that has found its pace, with a run that draws 1,000."""
    found = VirtualFederation(MANY)
    found.pace.need("r", 1000)
    found.come_over(400.0)
    found.until(MINUTES_10)
    return found


class TestManyParticipants:
    @pytest.mark.parametrize("forgets", [False, True], ids=["same process", "restarted"])
    def test_the_load_is_flat_after_an_outage(self, forgets: bool) -> None:
        """100,000 participants, an outage of one minute, then ten minutes."""
        there = many()
        there.outage = (600.0, 660.0)
        there.until(660.0)
        if forgets:
            there.restart()
            there.pace.need("r", 1000)
        there.until(660.0 + MINUTES_10)
        mean, most = there.rates(there.attempts, 660, 1260)
        assert most <= FACTOR * mean, (mean, most)
        assert most <= FACTOR * there.settings.per_s
        assert there.attempts == there.admitted, "no participant had to be put off"
        assert there.pace.population > (0.6 if forgets else 0.9) * MANY

    def test_a_population_that_comes_at_once_is_put_off_until_there_is_room(self) -> None:
        """As after an outage before which all got a spread of 0.2 s: no client had reason to wait."""
        there = VirtualFederation(MANY)
        there.come_over(5.0)
        there.until(MINUTES_10)
        per_s = there.settings.per_s
        assert sum(there.admitted[second] for second in range(10)) <= HEADROOM * per_s * (10 + BURST_S) + 1
        mean, most = there.rates(there.attempts, 10, 400)
        assert most <= 1.5 * mean, (mean, most)
        assert most <= 1.5 * per_s
        assert there.pace.population > 0.9 * MANY, "each has got a time, and most have come"

    def test_they_check_in_as_often_as_runs_need_and_no_more(self) -> None:
        there = many()
        there.pace.need("r", 10)
        there.until(3000.0)
        usual, _ = there.rates(there.admitted, 2400, 3000)
        assert usual <= 1.25 * MANY / there.settings.longest_s
        assert usual * there.settings.hold_s >= 10, "always enough for a cohort"


class TestFewParticipants:
    @pytest.mark.parametrize(("count", "needed"), [(10, 10), (300, 100), (3000, 2000)])
    def test_they_come_together(self, count: int, needed: int) -> None:
        there = VirtualFederation(count)
        there.pace.need("r", needed)
        there.come_over(120.0)
        there.until(MINUTES_10)
        hold = int(there.settings.hold_s)
        together = max(sum(there.attempts[at + second] for second in range(hold)) for at in range(400, 560))
        assert together >= 0.95 * count, "within the time that a call is held"
        assert max(there.attempts.values()) <= 1.5 * there.settings.per_s

    def test_more_than_runs_need_are_spread(self) -> None:
        there = VirtualFederation(3000)
        there.pace.need("r", 10)
        there.come_over(120.0)
        there.until(1800.0)
        mean, most = there.rates(there.attempts, 900, 1800)
        assert most <= 5 * mean

    def test_one_that_is_done_may_return_at_once_while_they_are_few(self) -> None:
        pace = PaceSteering(lambda: 1000.0, CheckInSettings(period_s=60.0), random.Random(1))
        pace.need("r", 2)
        assert pace.next_return("a").when_done
        assert 20.0 <= pace.next_return("a").after_s <= 21.0, "at the next full minute"
        assert pace.population == 1

    def test_the_next_meeting_is_not_too_soon(self) -> None:
        pace = PaceSteering(lambda: 1019.5, CheckInSettings(period_s=60.0), random.Random(1))
        pace.need("r", 2)
        assert 60.0 <= pace.next_return("a").after_s <= 62.0


def test_a_run_that_ends_needs_no_participants() -> None:
    pace = PaceSteering(lambda: 0.0)
    pace.need("one", 5)
    pace.need("two", 7)
    pace.need("one", 3)
    assert pace._need == 10
    pace.need("one", 0)
    pace.need("three", 0)
    assert pace._need == 7


def test_those_that_do_not_return_are_forgotten() -> None:
    now = [0.0]
    pace = PaceSteering(lambda: now[0], CheckInSettings(longest_s=60.0, period_s=10.0))
    for number in range(100):
        pace.arrived(f"p{number}")
        pace.next_return(f"p{number}")
    assert pace.population == 100
    for _ in range(40):
        now[0] += 10.0
        pace.arrived("p0")
        pace.next_return("p0")
    assert pace.population == 1
    assert len(pace._expected._load) <= 2


def test_a_long_silence_costs_no_more_than_what_is_remembered() -> None:
    now = [0.0]
    pace = PaceSteering(lambda: now[0])
    pace.arrived("p0")
    pace.next_return("p0")
    now[0] = 1e9
    pace.arrived("p0")
    assert pace.population == 0
    assert not pace._expected._load
