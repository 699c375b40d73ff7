"""Samplers: properties for any request, frequencies for fixed seeds, and draws that must never change."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.sampling import SAMPLERS, DrawRequest, Eligible, History, sampler_named

DRAWS = 20_000
NAMES = st.lists(st.integers(0, 999), max_size=40, unique=True).map(lambda ids: [f"p{i:03}" for i in ids])
HISTORIES = st.builds(
    History,
    last_selected_at=st.none() | st.floats(0, 1e9),
    times_selected=st.integers(0, 50),
    times_reported=st.integers(0, 50),
    online_s=st.lists(st.floats(0, 1e6), min_size=24, max_size=24).map(tuple),
    report_s=st.lists(st.floats(0, 1e5), max_size=5).map(tuple),
)


@st.composite
def requests(draw: st.DrawFn) -> DrawRequest:
    names = draw(NAMES)
    return DrawRequest(
        tuple(Eligible(name, draw(st.integers(0, 10_000))) for name in names),
        size=draw(st.integers(0, 50)),
        seed=draw(st.integers(0, 2**63 - 1)),
        round=draw(st.integers(0, 1000)),
        attempt=draw(st.integers(0, 5)),
        history={name: draw(HISTORIES) for name in names if draw(st.booleans())},
        at=draw(st.floats(0, 2e9)),
        window_s=draw(st.floats(1, 1e6)),
    )


def crowd(count: int, size: int, **settings: object) -> DrawRequest:
    base = DrawRequest(tuple(Eligible(f"p{i}", i + 1) for i in range(count)), size=size, seed=11, round=0)
    return replace(base, **settings)  # type: ignore[arg-type] # settings are named as the fields of DrawRequest


def frequencies(sampler: str, request: DrawRequest) -> dict[str, float]:
    """How often each participant is drawn over many rounds."""
    counts: Counter[str] = Counter()
    for number in range(DRAWS):
        counts.update(p for p, _ in SAMPLERS[sampler].draw(replace(request, round=number)).members)
    return {e.participant: counts[e.participant] / DRAWS for e in request.eligible}


def near(probability: float) -> object:
    """Whether a frequency over DRAWS draws is within five standard errors."""
    return pytest.approx(probability, abs=5 * math.sqrt(probability * (1 - probability) / DRAWS))


@pytest.mark.parametrize("sampler", SAMPLERS)
@given(request_=requests(), shuffle=st.randoms(use_true_random=False))
def test_a_draw_is_a_reproducible_subset_whatever_the_order_of_the_eligible(
    sampler: str, request_: DrawRequest, shuffle: object
) -> None:
    cohort = sampler_named(sampler).draw(request_)
    listed = list(request_.eligible)
    shuffle.shuffle(listed)  # type: ignore[attr-defined] # a random.Random that hypothesis does not type
    assert sampler_named(sampler).draw(replace(request_, eligible=tuple(listed))) == cohort
    declared = {e.participant: e.examples for e in request_.eligible}
    names = [participant for participant, _ in cohort.members]
    assert names == sorted(set(names))
    assert all(declared[participant] == weight for participant, weight in cohort.members)
    assert (cohort.eligible, cohort.sampler, cohort.seed) == (len(listed), sampler, request_.seed)
    if not SAMPLERS[sampler].independent:
        assert len(names) == min(request_.size, len(listed))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_seed_round_and_attempt_each_make_another_draw(sampler: str) -> None:
    request = crowd(200, 50)
    others = [replace(request, seed=12), replace(request, round=1), replace(request, attempt=1)]
    draws = {SAMPLERS[sampler].draw(r).members for r in (request, *others)}
    assert len(draws) == 4


def test_round_and_attempt_do_not_run_together() -> None:
    """Round 1 attempt 11 and round 11 attempt 1 are different draws, as are all others."""
    request = crowd(200, 50)
    keys = list(itertools.product(range(12), repeat=2))
    assert len({SAMPLERS["uniform"].draw(replace(request, round=r, attempt=a)).members for r, a in keys}) == 144


@pytest.mark.parametrize(
    ("sampler", "drawn"),
    [
        ("uniform", "p10 p2 p6 p9"),
        ("poisson", "p1 p4 p7"),
        ("weighted", "p10 p5 p6 p9"),
        ("least_recent", "p1 p10 p3 p7"),
        ("availability", "p0 p10 p8 p9"),
    ],
)
def test_recorded_draws_can_be_repeated_for_ever(sampler: str, drawn: str) -> None:
    """Literal draws: a change of numpy, platform or code that alters them would break the audit of past runs."""
    cohort = SAMPLERS[sampler].draw(crowd(12, 4))
    assert " ".join(participant for participant, _ in cohort.members) == drawn


def test_uniform_draws_every_subset_equally_often() -> None:
    counts: Counter[tuple[str, ...]] = Counter()
    for number in range(DRAWS):
        counts[tuple(p for p, _ in SAMPLERS["uniform"].draw(crowd(5, 2, round=number)).members)] += 1
    assert len(counts) == 10
    assert all(count / DRAWS == near(0.1) for count in counts.values())


def test_poisson_draws_each_at_its_rate_and_independently() -> None:
    request = crowd(6, 2, rate=0.3)
    assert all(share == near(0.3) for share in frequencies("poisson", request).values())
    pairs = sizes = 0
    for number in range(DRAWS):
        names = {p for p, _ in SAMPLERS["poisson"].draw(replace(request, round=number)).members}
        pairs += {"p0", "p1"} <= names
        sizes += len(names) == 0
    assert pairs / DRAWS == near(0.3**2)
    assert sizes / DRAWS == near(0.7**6)


def test_poisson_rate_is_exact_to_a_hundredth_of_itself() -> None:
    """The account is computed for this rate; one per cent more would be spent without being charged."""
    drawn = sum(len(SAMPLERS["poisson"].draw(crowd(1000, 1, rate=0.3, round=r)).members) for r in range(1000))
    assert drawn / 1e6 == pytest.approx(0.3, abs=5 * math.sqrt(0.3 * 0.7 / 1e6))


def test_poisson_without_a_rate_expects_the_size() -> None:
    assert all(share == near(0.5) for share in frequencies("poisson", crowd(4, 2)).values())
    assert len(SAMPLERS["poisson"].draw(crowd(4, 9)).members) == 4


@pytest.mark.parametrize(("rate", "drawn"), [(0.0, 0), (1.0, 50)])
def test_poisson_at_the_ends_of_its_range(rate: float, drawn: int) -> None:
    assert all(len(SAMPLERS["poisson"].draw(crowd(50, 1, rate=rate, round=r)).members) == drawn for r in range(50))


def test_weighted_draws_one_in_proportion_to_examples() -> None:
    assert frequencies("weighted", crowd(4, 1)) == {f"p{i}": near((i + 1) / 10) for i in range(4)}


def test_weighted_draws_several_as_successive_draws_without_replacement() -> None:
    """Efraimidis and Spirakis 2006, definition 1: each next item in proportion to its weight among those left."""
    weights = {"p0": 1, "p1": 2, "p2": 3, "p3": 4}
    exact: Counter[str] = Counter()
    for first, second in itertools.permutations(weights, 2):
        chance = weights[first] / 10 * weights[second] / (10 - weights[first])
        exact.update({first: chance, second: chance})
    assert frequencies("weighted", crowd(4, 2)) == {name: near(float(chance)) for name, chance in exact.items()}


def test_least_recent_draws_the_never_drawn_then_those_who_waited_longest() -> None:
    history = {
        "p0": History(last_selected_at=30.0, times_selected=1),
        "p1": History(last_selected_at=10.0, times_selected=9),
        "p2": History(last_selected_at=20.0, times_selected=1),
    }
    drawn = [
        [p for p, _ in SAMPLERS["least_recent"].draw(crowd(4, size, history=history)).members] for size in range(1, 5)
    ]
    assert drawn == [["p3"], ["p1", "p3"], ["p1", "p2", "p3"], ["p0", "p1", "p2", "p3"]]


def test_least_recent_breaks_equals_by_fewest_draws_and_then_at_random() -> None:
    history = {"p0": History(last_selected_at=10.0, times_selected=5)} | {
        f"p{i}": History(last_selected_at=10.0, times_selected=4) for i in range(1, 4)
    }
    shares = frequencies("least_recent", crowd(4, 1, history=history))
    assert shares == {"p0": 0.0, "p1": near(1 / 3), "p2": near(1 / 3), "p3": near(1 / 3)}


def test_least_recent_gives_everyone_a_turn() -> None:
    request = crowd(7, 2)
    last: dict[str, float] = {}
    for number in range(7):
        history = {p: History(last_selected_at=at, times_selected=1) for p, at in last.items()}
        for p, _ in SAMPLERS["least_recent"].draw(replace(request, round=number, history=history)).members:
            last[p] = float(number)
    assert len(last) == 7
    assert min(last.values()) >= 3


def test_availability_gives_participants_that_report_late_a_small_share() -> None:
    history = {"p0": History(times_selected=99, times_reported=0, report_s=(900.0,) * 16)}
    shares = frequencies("availability", crowd(2, 1, history=history, window_s=60.0))
    assert shares["p0"] == near(0.05 / 1.05)


def test_an_unknown_sampler_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="sampler = 'random': must be one of uniform, poisson, weighted, least_recent"):
        sampler_named("random")
