"""Write a section as TOML text that ``load.parse`` can read back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from atoll.settings.section import Section

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(root: Section) -> str:
    """The file of a root section: only the keys that were set explicitly."""
    return "\n".join(_table("", given(root))).lstrip("\n") + "\n"


def given(section: Section) -> dict[str, object]:
    """The keys that were set when a section was created, in field order; nested sections as tables, without None."""
    found = {name: getattr(section, name) for name in type(section).model_fields if name in section.model_fields_set}
    return {key: given(item) if isinstance(item, Section) else item for key, item in found.items() if item is not None}


def _table(name: str, keys: Mapping[str, object]) -> Iterator[str]:
    """The lines of a table: its own keys first, then the tables inside it."""
    if name:
        yield f"\n[{name}]"
    yield from (f"{_key(key)} = {_value(item)}" for key, item in keys.items() if not isinstance(item, Mapping))
    for key, item in keys.items():
        if isinstance(item, Mapping):
            yield from _table(f"{name}.{_key(key)}" if name else _key(key), item)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(item: object) -> str:
    match item:
        case bool():
            return "true" if item else "false"
        case int() | float():
            return repr(item)
        case str():
            return _text(item)
        case tuple() | list():
            return f"[{', '.join(map(_value, item))}]"
    raise TypeError(f"{type(item).__name__} has no TOML form here")


def _text(item: str) -> str:
    """A basic string (TOML 1.0, "String"): JSON's escapes, and DEL, which JSON leaves as it is."""
    return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007f")
