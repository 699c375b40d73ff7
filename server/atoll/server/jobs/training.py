"""``[training]``: settings that participants receive; typed, otherwise free."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import BeforeValidator, SkipValidation

from atoll.settings.section import SectionProblems
from atoll.wire.messages import SettingValue

MAX_SETTINGS = 128
MAX_TEXT_CHARS = 4096
PROXIMAL_MU = "proximal_mu"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class Settings(Mapping[str, SettingValue]):
    """Settings by name: read-only, equal to a dict with the same items, hashable and picklable."""

    __slots__ = ("_found",)

    def __init__(self, found: Mapping[str, SettingValue]) -> None:
        self._found = dict(found)

    def __getitem__(self, name: str) -> SettingValue:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __hash__(self) -> int:
        return hash(frozenset(self._found.items()))

    def __repr__(self) -> str:
        return repr(self._found)


def check_settings(found: object) -> Mapping[str, SettingValue]:
    """Check settings; each must be a number, a whole number, a flag or a text.

    Raises:
        SectionProblems: for anything else; names every key.
    """
    if not isinstance(found, Mapping):
        raise SectionProblems((("", "allowed is a table of numbers, whole numbers, flags and texts"),))
    problems = [(str(name), text) for name, value in found.items() if (text := _problem(str(name), value))]
    if PROXIMAL_MU in found and not _not_negative(found[PROXIMAL_MU]):
        problems.append((PROXIMAL_MU, "allowed is a number from 0; below it participants would be driven apart"))
    if len(found) > MAX_SETTINGS:
        problems.append(("", f"{len(found)} settings; allowed are at most {MAX_SETTINGS}"))
    if problems:
        raise SectionProblems(tuple(problems))
    return Settings(found)


TrainingSettings = Annotated[SkipValidation[Mapping[str, SettingValue]], BeforeValidator(check_settings)]


def _problem(name: str, value: object) -> str:
    """The problem of one setting; empty if it is valid."""
    if not _NAME.fullmatch(name):
        return "not a name; allowed are up to 64 letters, digits, '_', '.', '-', the first a letter"
    match value:
        case int() if not -(2**63) <= value < 2**63:
            return "beyond 64 bits; allowed are -2^63 to 2^63 - 1"
        case float() if not math.isfinite(value):
            return "not finite; allowed are finite numbers"
        case str() if len(value) > MAX_TEXT_CHARS:
            return f"{len(value)} characters; allowed are at most {MAX_TEXT_CHARS}"
        case int() | float() | str():
            return ""
        case _:
            return "allowed are a number, a whole number, true or false, or text"


def _not_negative(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
