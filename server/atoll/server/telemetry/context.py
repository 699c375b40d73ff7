"""Fields of all log lines of a task or a block: run, round, participant, operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

_NOTHING: Mapping[str, object] = MappingProxyType({})
_known: ContextVar[Mapping[str, object]] = ContextVar("atoll_log_context", default=_NOTHING)


def known() -> Mapping[str, object]:
    """The fields of the running task."""
    return _known.get()


def remember(**facts: object) -> None:
    """Set fields for the rest of this task and for the tasks that it starts; None values are ignored."""
    _known.set(_with(facts))


@contextmanager
def about(**facts: object) -> Iterator[None]:
    """Like ``remember``, within a block."""
    token = _known.set(_with(facts))
    try:
        yield
    finally:
        _known.reset(token)


def _with(facts: Mapping[str, object]) -> Mapping[str, object]:
    return {**_known.get(), **{name: value for name, value in facts.items() if value is not None}}
