"""Lists that a server gives page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar


class Request(Protocol):
    """Asks for a page: the first, or the one that begins at ``after``."""

    after: str


class Page(Protocol):
    """Says where the next page begins; empty on the last."""

    next: str


Asked = TypeVar("Asked", bound=Request)
Answer = TypeVar("Answer", bound=Page)


def pages(ask: Callable[[Asked], Answer], request: Asked) -> Iterator[Answer]:
    """The answers to a request, each asked for when it is wanted; ``request`` is changed on the way."""
    while True:
        answer = ask(request)
        yield answer
        if not answer.next:
            return
        request.after = answer.next
