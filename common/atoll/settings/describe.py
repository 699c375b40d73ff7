"""Describe a key's allowed values, from its pydantic field, for error messages and reference pages."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from atoll.settings.section import Hint, Section

_KINDS: dict[object, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "a path",
    tuple: "a list of texts",
}


def hint_of(field: FieldInfo) -> Hint:
    """The field's hint, empty if it has none."""
    return next((item for item in field.metadata if isinstance(item, Hint)), Hint())


def section_of(field: FieldInfo) -> type[Section] | None:
    """The section class of a field, if its type is one."""
    kind = _required_type(field)
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    """The values of a field that is a choice of strings; empty for other fields."""
    kind = _required_type(field)
    return tuple(str(item) for item in get_args(kind)) if get_origin(kind) is Literal else ()


def allowed(field: FieldInfo) -> str:
    """The allowed values of the key: the hint's words, the choices, or type and range."""
    if hint := hint_of(field).allowed:
        return hint
    if choices := choices_of(field):
        return ", ".join(f'"{item}"' for item in choices)
    if section_of(field):
        return "a table"
    kind = _required_type(field)
    return f"{_KINDS.get(get_origin(kind) or kind, 'a table of settings')}{_range(field)}"


def _required_type(field: FieldInfo) -> object:
    kind = field.annotation
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(item for item in get_args(kind) if item is not type(None))
    return kind


def _range(field: FieldInfo) -> str:
    lower = upper = ""
    for item in field.metadata:
        match item:
            case annotated_types.Ge(ge=bound):
                lower = f"from {_number(bound)}"
            case annotated_types.Gt(gt=bound):
                lower = f"above {_number(bound)}"
            case annotated_types.Le(le=bound):
                upper = f"to {_number(bound)}" if lower.startswith("from") else f"up to {_number(bound)}"
            case annotated_types.Lt(lt=bound):
                upper = f"and below {_number(bound)}" if lower else f"below {_number(bound)}"
            case _:
                continue
    words = " ".join(part for part in (lower, upper) if part)
    return f" {words}" if words else ""


def _number(bound: object) -> str:
    if isinstance(bound, int) and bound >= 2**31 and bound & (bound - 1) == 0:
        return f"2^{bound.bit_length() - 1}"
    return f"{bound:g}" if isinstance(bound, float) else str(bound)
