"""The values of this package as plain JSON data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def as_json(value: object) -> Json:
    """A value of this package, or lists and mappings of them, as plain JSON data: the dataclass fields are the keys.

    Non-finite numbers, which JSON lacks, are left out of mappings and are None elsewhere.
    """
    if _is_not_finite(value):
        return None
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if is_dataclass(value):
        return {item.name: as_json(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items() if not _is_not_finite(item)}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
