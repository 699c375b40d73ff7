"""Pace steering in virtual time: the server's own decisions, and the client's own delays."""

import random

import pytest

from atoll.server.config.check_in_settings import CheckInSettings
from atoll.server.rpc.return_gate import BURST_S, HEADROOM
from atoll.server.runs.pace_steering import PaceSteering
from atoll.server.runs.project_pace import ProjectPace
from atoll.server.runs.shared_rate import fair_shares
from tests.server.runs.virtual_phones import MANY, MINUTES_10, OUTAGE_S, VirtualFederation, after_an_outage, rate_for

pytestmark = pytest.mark.slow

QUARTER, TENTH = 25_000, 10_000
"""Phones, of the 100,000 for which the rate is made: a tenth is enough for most."""
FULLEST, FULLEST_RESTARTED = 1.25, 1.5
"""The fullest second after an outage has at most this many times the rate that the server asks for. A new process does
not know who is expected."""
AFTER = int(MINUTES_10 + OUTAGE_S), int(2 * MINUTES_10 + OUTAGE_S)


class TestManyParticipants:
    @pytest.mark.parametrize(
        ("forgets", "count"),
        [
            pytest.param(False, QUARTER, id="same process"),
            pytest.param(False, MANY, id="many, same process", marks=pytest.mark.every_case),
            pytest.param(True, MANY, id="restarted", marks=pytest.mark.every_case),
        ],
    )
    def test_the_load_is_flat_after_an_outage(self, forgets: bool, count: int) -> None:
        """An outage of three minutes, then ten minutes."""
        there = after_an_outage(forgets=forgets, count=count, settings=rate_for(count))
        _, most = there.rates(there.attempts, *AFTER)
        assert most <= (FULLEST_RESTARTED if forgets else FULLEST) * there.settings.per_s
        usual, _ = there.rates(there.attempts, 500, 600)
        later, _ = there.rates(there.attempts, AFTER[1] - 100, AFTER[1])
        assert later <= (3.0 if forgets else 2.0) * usual, "the pace is found again"
        assert there.attempts == there.admitted, "nobody had to be put off"
        assert there.pace.population > (0.6 if forgets else 0.9) * count

    def test_a_population_that_comes_at_once_is_put_off_until_there_is_room(self) -> None:
        """As after an outage before which all got a spread of 0.2 s, so that no client had a reason to wait."""
        there = VirtualFederation(QUARTER, settings=rate_for(QUARTER))
        there.come_over(5.0)
        there.until(MINUTES_10)
        per_s = there.settings.per_s
        assert sum(there.admitted[second] for second in range(10)) <= HEADROOM * per_s * (10 + BURST_S) + 1
        mean, most = there.rates(there.attempts, 10, 400)
        assert most <= 1.5 * mean, (mean, most)
        assert most <= 1.5 * per_s
        assert there.pace.population > 0.9 * QUARTER, "each has got a time, and most have come"

    def test_they_check_in_as_often_as_runs_need_and_no_more(self) -> None:
        there = VirtualFederation(TENTH, settings=rate_for(TENTH))
        there.pace.need("r", 10)
        there.come_over(400.0)
        there.until(3000.0)
        usual, _ = there.rates(there.admitted, 2400, 3000)
        assert usual <= 1.25 * TENTH / there.settings.longest_s
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
        pace = ProjectPace(lambda: 1000.0, CheckInSettings(period_s=60.0), random.Random(1))
        pace.need("r", 2)
        assert pace.next_return("a").when_done
        assert 20.0 <= pace.next_return("a").after_s <= 21.0, "at the next full minute"
        assert pace.population == 1

    def test_the_next_meeting_is_not_too_soon(self) -> None:
        pace = ProjectPace(lambda: 1019.5, CheckInSettings(period_s=60.0), random.Random(1))
        pace.need("r", 2)
        assert 60.0 <= pace.next_return("a").after_s <= 62.0


class TestSeveralProjects:
    """A project with many phones does not keep those of another from coming."""

    MANY, FEW = 30_000, 60

    def there(self, part: float = 1.0) -> VirtualFederation:
        """Both projects; ``part`` of the large one and of the rate is enough for most."""
        settings = CheckInSettings(per_s=part * CheckInSettings().per_s)
        there = VirtualFederation(int(part * self.MANY), {"small": self.FEW}, settings)
        there.pace.need("r", int(part * 1000))
        there.pace.need("s", 50, "small")
        return there

    def test_a_small_one_gathers_beside_a_large_one(self) -> None:
        there = self.there(0.4)
        there.come_over(240.0)
        there.until(1200.0)
        small, hold, period = there.of["small"], int(there.settings.hold_s), int(there.settings.period_s)
        for began in range(600, 1200, period):
            together = max(sum(small[at + second] for second in range(hold)) for at in range(began, began + period))
            assert together >= 0.95 * self.FEW, f"within the time that a call is held, in the minute from {began}"
        mean, most = there.rates(there.attempts, 600, 1200)
        alone = VirtualFederation(there.count, settings=there.settings)
        alone.pace.need("r", 400)
        alone.come_over(240.0)
        alone.until(1200.0)
        usual, _ = alone.rates(alone.attempts, 600, 1200)
        assert most <= FULLEST * there.settings.per_s
        assert mean >= 0.95 * usual, "what the small one does not take is the large one's"

    def test_a_rush_of_one_puts_the_other_off_for_seconds_only(self) -> None:
        """All phones come within 5 s, as after an outage of which no client knew."""
        there = self.there()
        there.come_over(5.0)
        there.until(60.0)
        small = there.of["small"]
        assert sum(small[second] for second in range(15)) >= self.FEW, "each has been taken within 15 s"
        taken = sum(there.admitted[second] for second in range(10))
        assert taken <= HEADROOM * there.settings.per_s * (10 + BURST_S) + 1, "the whole is bounded as before"

    def test_after_an_outage_the_small_one_is_back_at_once(self) -> None:
        there = self.there(0.4)
        there.come_over(240.0)
        there.outage = (MINUTES_10, MINUTES_10 + OUTAGE_S)
        there.until(2 * MINUTES_10)
        small, back = there.of["small"], int(MINUTES_10 + OUTAGE_S)
        assert sum(small[second] for second in range(back, back + 70)) >= self.FEW
        _, most = there.rates(there.attempts, back, int(2 * MINUTES_10))
        assert most <= FULLEST * there.settings.per_s

    def test_two_large_ones_get_as_much_as_each_other(self) -> None:
        settings = CheckInSettings(per_s=10.0)
        there, alone = VirtualFederation(1200, {"other": 3600}, settings), VirtualFederation(4800, settings=settings)
        there.pace.need("r", 1000)
        there.pace.need("s", 1000, "other")
        alone.pace.need("r", 1000)
        for one in (there, alone):
            one.come_over(600.0)
            one.until(3600.0)
        first, _ = there.rates(there.of["default"], 1800, 3600)
        second, _ = there.rates(there.of["other"], 1800, 3600)
        usual, _ = alone.rates(alone.admitted, 1800, 3600)
        assert 0.9 <= first / second <= 1.1
        assert first + second >= 0.95 * usual, "and no less than one project with all phones"

    def test_what_one_no_longer_wants_is_free_again(self) -> None:
        now = [1000.0]
        paces = PaceSteering(lambda: now[0], CheckInSettings(longest_s=60.0, period_s=10.0), random.Random(1))
        other = paces.of("other")
        for number in range(5000):
            other.arrived(f"p{number}")
            other.next_return(f"p{number}")
        now[0] += 1.0
        assert paces._rate.share(paces.of("default"), now[0]) < 200.0
        now[0] += 3600.0
        assert paces._rate.share(paces.of("default"), now[0]) > 245.0
        assert paces.population == 0

    @pytest.mark.parametrize("many", [200, 8000])
    def test_one_whose_participants_are_all_in_their_calls_keeps_an_equal_share(self, many: int) -> None:
        """Next to one that gathers, or is spread, and wants the whole rate."""
        now = [1000.0]
        paces = PaceSteering(lambda: now[0], CheckInSettings(per_s=10.0), random.Random(1))
        large, small = paces.of("large"), paces.of("small")
        paces.need("r", 1000, "large")
        small.arrived("alone")
        small.next_return("alone")
        for number in range(many):
            now[0] += 60.0 / many
            large.arrived(f"p{number}")
            large.next_return(f"p{number}")
        small._expected._rate = 0.0  # as after hours in which it came when it was expected
        now[0] += 1.0
        small.arrived("alone")
        assert small.population == 0
        assert paces._rate.share(small, now[0]) >= 0.5 * paces.settings.per_s
        assert small.return_spread_s == 0.0
        assert small.put_off("alone") <= 3.0
        now[0] += 1.0
        small.arrived("alone")
        assert small.next_return("alone").after_s <= paces.settings.period_s + 2.0

    def test_a_run_that_is_gone_needs_none_of_its_project(self) -> None:
        paces = PaceSteering(lambda: 0.0)
        paces.need("r", 7, "cardio")
        assert (paces.of("cardio")._need, paces.of("default")._need) == (7, 0)
        paces.need("r", 0)
        assert paces.of("cardio")._need == 0


@pytest.mark.parametrize(
    ("demands", "shares"),
    [
        ([], []),
        ([10.0], [10.0]),
        ([500.0], [100.0]),
        ([10.0, 500.0], [10.0, 90.0]),
        ([500.0, 10.0, 30.0, 500.0], [30.0, 10.0, 30.0, 30.0]),
    ],
)
def test_fair_shares(demands: list[float], shares: list[float]) -> None:
    assert fair_shares(100.0, demands) == pytest.approx(shares)


def test_a_run_that_ends_needs_no_participants() -> None:
    pace = ProjectPace(lambda: 0.0)
    pace.need("one", 5)
    pace.need("two", 7)
    pace.need("one", 3)
    assert pace._need == 10
    pace.need("one", 0)
    pace.need("three", 0)
    assert pace._need == 7


def test_those_that_do_not_return_are_forgotten() -> None:
    now = [0.0]
    pace = ProjectPace(lambda: now[0], CheckInSettings(longest_s=60.0, period_s=10.0))
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
    assert len(pace._rate.load) <= 2


def test_a_long_silence_costs_no_more_than_what_is_remembered() -> None:
    now = [0.0]
    pace = ProjectPace(lambda: now[0])
    pace.arrived("p0")
    pace.next_return("p0")
    now[0] = 1e9
    pace.arrived("p0")
    assert pace.population == 0
    assert len(pace._expected._load) == len(pace._rate.load) == 0
