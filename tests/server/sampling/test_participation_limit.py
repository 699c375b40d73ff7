import pytest

from atoll.server.sampling import Participation, ParticipationLimit


@pytest.mark.parametrize(
    ("times", "last", "number", "barred"),
    [(1, 4, 5, True), (1, 4, 6, True), (1, 4, 7, False), (2, 4, 7, False), (3, 4, 100, True)],
)
def test_the_next_participation_is_late_enough_and_not_one_too_many(
    times: int, last: int, number: int, barred: bool
) -> None:
    limit = ParticipationLimit(most=3, separation=3)
    assert limit.bars(Participation(times, last), number) is barred
    assert limit.barred({"a": Participation(times, last)}, number) == ({"a"} if barred else frozenset())


def test_separation_of_one_allows_every_round() -> None:
    assert not ParticipationLimit(most=9).bars(Participation(5, 6), 7)


@pytest.mark.parametrize(("most", "separation"), [(0, 1), (1, 0)])
def test_a_bound_below_one_is_refused(most: int, separation: int) -> None:
    with pytest.raises(ValueError, match="must be 1 or more"):
        ParticipationLimit(most, separation)
