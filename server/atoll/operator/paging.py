"""Fetch lists from a server page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar


class Request(Protocol):
    """A request for a page: the first, or the one that begins at ``after``."""

    after: str


class Page(Protocol):
    """The mark at which the next page begins; empty on the last page."""

    next: str


Asked = TypeVar("Asked", bound=Request)
Answer = TypeVar("Answer", bound=Page)


def pages(ask: Callable[[Asked], Answer], request: Asked) -> Iterator[Answer]:
    """The answers to a request, each fetched when needed; ``request`` is modified."""
    while True:
        answer = ask(request)
        yield answer
        if not answer.next:
            return
        request.after = answer.next
