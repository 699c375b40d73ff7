"""Pins the fields that a run stores in the database, which the previous release must be able to read."""

from __future__ import annotations

import typing
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path

from atoll.server.rounds import Event, RunState

PINNED = Path(__file__).parent / "persisted.txt"
RULES = (
    "servers of the release before read what this one writes: give a new field a default that means what happened "
    "before, and never rename a field, kind or value, change a default, or change a type (atoll.server.rounds.events). "
    f"Then bring {PINNED.name} up to date"
)


def reached(kind: object, found: set[type]) -> None:
    """Add the dataclasses and enums that a value of a type is made of."""
    if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, Enum)) and kind not in found:
        found.add(kind)
        if is_dataclass(kind):
            for hint in typing.get_type_hints(kind).values():
                reached(hint, found)
    for argument in typing.get_args(kind):
        reached(argument, found)


def line(owner: type, field: Field[object]) -> str:
    hint = typing.get_type_hints(owner)[field.name]
    shown = hint.__name__ if isinstance(hint, type) else str(hint)
    default = "" if field.default is MISSING else f" = {field.default!r}"
    if field.default_factory is not MISSING:
        default = f" = {field.default_factory()!r}"
    return f"{owner.__name__}.{field.name}: {shown}{default}"


def persisted() -> list[str]:
    found = set[type]()
    for root in (*typing.get_args(Event), RunState):
        reached(root, found)
    lines = list[str]()
    for kind in sorted(found, key=lambda one: one.__name__):
        if is_dataclass(kind):
            lines += [line(kind, field) for field in fields(kind)]
        elif issubclass(kind, Enum):
            lines += [f"{kind.__name__} {member.value}" for member in kind]
    return lines


def test_the_release_before_can_read_what_a_run_leaves() -> None:
    now, pinned = persisted(), PINNED.read_text(encoding="utf-8").splitlines()
    gone = [one for one in pinned if one not in now]
    assert not gone, f"{gone}: {RULES}"
    needed = [one for one in now if one not in pinned and ": " in one and " = " not in one]
    kinds = {one.partition(".")[0] for one in pinned}
    assert not [one for one in needed if one.partition(".")[0] in kinds], f"{needed}: {RULES}"
    assert now == pinned, f"{[one for one in now if one not in pinned]}: {RULES}"
