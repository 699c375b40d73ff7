"""Pace steering in virtual time: the server's own decisions, and the client's own delays."""

import random

import pytest

from atoll.server.config.check_in_settings import CheckInSettings
from atoll.server.rpc.return_gate import BURST_S, HEADROOM
from atoll.server.runs.pace_steering import PaceSteering
from tests.server.runs.virtual_phones import MANY, MINUTES_10, OUTAGE_S, VirtualFederation, after_an_outage, many

FULLEST, FULLEST_RESTARTED = 1.25, 1.5
"""The fullest second after an outage has at most this many times the rate that the server asks for. A new process does
not know who is expected."""
AFTER = int(MINUTES_10 + OUTAGE_S), int(2 * MINUTES_10 + OUTAGE_S)


class TestManyParticipants:
    @pytest.mark.parametrize("forgets", [False, True], ids=["same process", "restarted"])
    def test_the_load_is_flat_after_an_outage(self, forgets: bool) -> None:
        """100,000 participants, an outage of three minutes, then ten minutes."""
        there = after_an_outage(forgets=forgets)
        _, most = there.rates(there.attempts, *AFTER)
        assert most <= (FULLEST_RESTARTED if forgets else FULLEST) * there.settings.per_s
        usual, _ = there.rates(there.attempts, 500, 600)
        later, _ = there.rates(there.attempts, AFTER[1] - 100, AFTER[1])
        assert later <= (3.0 if forgets else 2.0) * usual, "the pace is found again"
        assert there.attempts == there.admitted, "nobody had to be put off"
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
