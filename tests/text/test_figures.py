import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.text.figures import bound, counted, figure, remainder

SPENT = st.just(0.0) | st.floats(min_value=1e-9, max_value=1e6)


def test_what_is_shown_of_a_bound_is_a_bound() -> None:
    assert (bound(2.90211), figure(2.90211), remainder(2.90299)) == ("2.903", "2.902", "2.902")
    assert (bound(7.99921, 5), bound(3.41, 2), remainder(3.49, 2)) == ("7.9993", "3.5", "3.4")
    assert (bound(0.1), bound(1e-5), remainder(0.3)) == ("0.1", "1e-05", "0.3")
    assert (bound(8.0), bound(0.0), bound(None), bound(float("inf"))) == ("8", "0", "-", "unbounded")


@given(SPENT, st.integers(1, 12))
def test_an_epsilon_is_never_shown_smaller_and_a_rest_never_larger_than_it_is(value: float, digits: int) -> None:
    assert float(remainder(value, digits)) <= value <= float(bound(value, digits))
    assert float(bound(value, digits)) <= value * (1 + 1.01 * 10.0 ** (1 - digits))


@pytest.mark.parametrize(("number", "words"), [(0, "0 flaws"), (1, "1 flaw"), (2, "2 flaws"), (1200, "1200 flaws")])
def test_numbers_with_their_noun(number: int, words: str) -> None:
    assert counted(number, "flaw") == words
    assert counted(1, "round is", "rounds are") == "1 round is"
    assert counted(2, "round is", "rounds are") == "2 rounds are"
