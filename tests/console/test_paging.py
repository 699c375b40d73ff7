"""Pages of lists."""

from __future__ import annotations

import pytest

from atoll.console.paging import page_number, paged


@pytest.mark.parametrize(("number", "items"), [(1, [0, 1]), (2, [2, 3]), (3, [4]), (9, [4]), (0, [0, 1])])
def test_a_page_or_the_nearest_one(number: int, items: list[int]) -> None:
    found = paged(range(5), number, 2)
    assert list(found.items) == items
    assert (found.count, found.total, found.start) == (3, 5, items[0])


def test_an_empty_list_has_one_page() -> None:
    empty: tuple[int, ...] = ()
    found = paged(empty, 4, 2)
    assert (tuple(found.items), found.number, found.count) == ((), 1, 1)


@pytest.mark.parametrize(
    ("text", "number"), [("7", 7), (None, 1), ("", 1), ("-3", 1), ("x", 1), ("²", 1), ("9" * 99, 1)]
)
def test_the_number_of_a_page(text: str | None, number: int) -> None:
    assert page_number(text) == number
