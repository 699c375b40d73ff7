"""``--sweep KEY=VALUE,VALUE``: values as a job file writes them, texts without quotes too."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable

from atoll.operator.errors import BadInputError

_FORM = "--sweep KEY=VALUE,VALUE, for example --sweep optimiser.lr=0.01,0.1"


def grid_of(options: Iterable[str]) -> dict[str, list[object]]:
    """The values of each key, in the order of the options.

    Raises:
        BadInputError: naming the option that cannot be read, or names a key again.
    """
    grid: dict[str, list[object]] = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not (equals and key.strip() and text.strip()):
            raise BadInputError(f"--sweep {option!r} has no key or no value", f"write {_FORM}")
        if key.strip() in grid:
            raise BadInputError(f"--sweep {option!r} names {key.strip()} again", "give all its values in one option")
        grid[key.strip()] = _values(text.strip())
    return grid


def _values(text: str) -> list[object]:
    """A TOML array as it is; otherwise what the commas divide."""
    if text.startswith("["):
        found = _toml(text)
        return found if isinstance(found, list) else [found]
    return [_toml(part.strip()) for part in text.split(",")]


def _toml(text: str) -> object:
    """A TOML value; what is none is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
