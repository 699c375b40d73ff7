"""Report windows, fixed and learned."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.sampling.report_window import FixedReportWindow, LearnedReportWindow, report_window_s

LEARNED = LearnedReportWindow(quantile=0.9, factor=2.0, min_s=5.0, max_s=100.0, initial_s=60.0)
TIMES = st.lists(st.lists(st.floats(0, 1e6), max_size=5), max_size=20)


def test_a_fixed_window_learns_nothing() -> None:
    assert report_window_s(FixedReportWindow(30.0), [(1.0,)] * 9) == 30.0


@pytest.mark.parametrize(
    ("past", "window_s"),
    [
        ([], 60.0),
        ([(), ()], 60.0),
        ([(10.0,), (), ()], 60.0),  # one of three is too little to go by
        ([(10.0,), ()], 20.0),  # half of the cohort is enough
        ([(float(t),) for t in range(1, 11)], 18.0),  # nine of ten took 9 s or less
        ([(10.0, 10.0, 99.0)], 20.0),  # one slow report does not make a slow participant
        ([(1.0,)], 5.0),
        ([(80.0,)], 100.0),
    ],
)
def test_a_learned_window(past: list[tuple[float, ...]], window_s: float) -> None:
    assert report_window_s(LEARNED, past) == window_s


@given(TIMES, st.randoms(use_true_random=False))
def test_a_learned_window_stays_in_its_bounds_whatever_the_order_of_members(
    past: list[list[float]], shuffle: object
) -> None:
    window_s = report_window_s(LEARNED, past)
    assert 5.0 <= window_s <= 100.0
    again = list(past)
    shuffle.shuffle(again)  # type: ignore[attr-defined] # a random.Random that hypothesis does not type
    assert report_window_s(LEARNED, again) == window_s


@given(TIMES.filter(lambda past: past and all(past)))
def test_the_window_fits_the_share_of_members_that_it_is_for(past: list[list[float]]) -> None:
    window = LearnedReportWindow(quantile=0.5, factor=1.0, min_s=1e-9, max_s=1e9, initial_s=1.0)
    seconds = report_window_s(window, past)
    in_time = sum(sorted(times)[(len(times) - 1) // 2] <= seconds for times in past)
    assert in_time >= 0.5 * len(past)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedReportWindow(0.0), r"window_s = 0\.0: must be finite and above 0 seconds"),
        (lambda: FixedReportWindow(float("inf")), "window_s = inf"),
        (lambda: LearnedReportWindow(quantile=0.0), r"quantile = 0\.0: must be above 0"),
        (lambda: LearnedReportWindow(known_share=1.5), r"known_share = 1\.5"),
        (lambda: LearnedReportWindow(factor=0.5), r"factor = 0\.5: must be finite and 1 or more"),
        (lambda: LearnedReportWindow(min_s=9.0, max_s=8.0), r"min_s = 9\.0, initial_s = 600\.0, max_s = 8\.0"),
    ],
)
def test_a_window_that_is_out_of_range_is_refused_by_name(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
