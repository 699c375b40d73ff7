"""Column types that store small typed values as text, identically in every database."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from sqlalchemy import Dialect, String, Text
from sqlalchemy.types import TypeDecorator

from atoll.server.stores.errors import StoreDamagedError

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")
NamedNumbers = tuple[tuple[str, float], ...]
NamedTexts = tuple[tuple[str, str], ...]


class NamedNumbersText(TypeDecorator[NamedNumbers]):
    """``((name, number), ...)`` as a JSON object."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: NamedNumbers | None, dialect: Dialect) -> str | None:
        """To JSON text."""
        del dialect
        return None if value is None else _dump(dict(value))

    def process_result_value(self, value: str | None, dialect: Dialect) -> NamedNumbers | None:
        """From JSON text; numbers come back as float."""
        del dialect
        return None if value is None else _read(value, _named_numbers)


class NamedTextsText(TypeDecorator[NamedTexts]):
    """``((name, text), ...)`` as a JSON object."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: NamedTexts | None, dialect: Dialect) -> str | None:
        """To JSON text."""
        del dialect
        return None if value is None else _dump(dict(value))

    def process_result_value(self, value: str | None, dialect: Dialect) -> NamedTexts | None:
        """From JSON text."""
        del dialect
        return None if value is None else _read(value, _named_texts)


class NumbersText(TypeDecorator[tuple[float, ...]]):
    """``(number, ...)`` as a JSON array."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: tuple[float, ...] | None, dialect: Dialect) -> str | None:
        """To JSON text."""
        del dialect
        return None if value is None else _dump(list(value))

    def process_result_value(self, value: str | None, dialect: Dialect) -> tuple[float, ...] | None:
        """From JSON text; numbers come back as float."""
        del dialect
        return None if value is None else _read(value, _numbers)


class EnumText(TypeDecorator[E], Generic[E]):
    """A ``StrEnum`` member as its value."""

    impl = String(16)
    cache_ok = True

    def __init__(self, members: type[E]) -> None:
        super().__init__()
        self.members = members

    def process_bind_param(self, value: E | None, dialect: Dialect) -> str | None:
        """To its value; a plain string must be one of the values."""
        del dialect
        return None if value is None else self.members(value).value

    def process_result_value(self, value: str | None, dialect: Dialect) -> E | None:
        """From its value."""
        del dialect
        return None if value is None else _read(value, self._member)

    def _member(self, value: str) -> E:
        """The member with this value; an unknown value may be a newer version's, and is never taken for another."""
        try:
            return self.members(value)
        except ValueError:
            known = ", ".join(member.value for member in self.members)
            message = f"the database holds {value[:40]!r} where this version knows {known}: a newer one wrote it, or"
            raise StoreDamagedError(f"{message} the database is damaged") from None


_encode = json.JSONEncoder(separators=(",", ":")).encode  # ``json.dumps`` makes an encoder for each value


def _dump(value: object) -> str:
    return _encode(value)


def _read(text: str, made_by: Callable[[str], T]) -> T:
    try:
        return made_by(text)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StoreDamagedError(f"the database is damaged: {text[:40]!r} cannot be read") from error


def _named_numbers(text: str) -> NamedNumbers:
    loaded: Mapping[str, float] = json.loads(text)
    return tuple((name, float(number)) for name, number in loaded.items())


def _named_texts(text: str) -> NamedTexts:
    loaded: Mapping[str, str] = json.loads(text)
    return tuple((name, value) for name, value in loaded.items())


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in json.loads(text))
