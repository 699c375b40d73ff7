"""Pages of a long list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list.

    Attributes:
        items: the items on this page.
        number: its number, from 1.
        count: how many pages there are.
        total: how many items there are.
        start: items on the pages before.
    """

    items: Sequence[T]
    number: int
    count: int
    total: int
    start: int


def paged(items: Sequence[T], number: int, size: int) -> Page[T]:
    """Page ``number`` of a list, with at most ``size`` items; the nearest page if that page does not exist."""
    count = max(1, -(-len(items) // size))
    shown = min(max(1, number), count)
    start = (shown - 1) * size
    return Page(items[start : start + size], shown, count, len(items), start)


def page_number(text: str | None) -> int:
    """The page number in an address; 1 for a text that is not a page number."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 1
