"""``--set KEY=VALUE`` and ``--sweep KEY=VALUE,VALUE``: values as in a job file; quotes around strings are optional."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence

from atoll.operator.errors import BadInputError

_FORMS = {
    "--set": "--set KEY=VALUE, for example --set training.lr=0.1",
    "--sweep": "--sweep KEY=VALUE,VALUE, for example --sweep optimiser.lr=0.01,0.1",
}


def changes_of(options: Iterable[str]) -> dict[str, object]:
    """The value of each key of ``--set``, in the order of the options.

    Raises:
        BadInputError: naming an option that cannot be read, repeats a key, or gives several values.
    """
    changes: dict[str, object] = {}
    for key, text in _pairs("--set", options):
        found = _toml(text)
        if found == text and "," in text:
            raise BadInputError(f"--set {key}={text} gives several values", "--sweep begins a run for each of them")
        changes[key] = found
    return changes


def grid_of(options: Iterable[str]) -> dict[str, list[object]]:
    """The values of each key of ``--sweep``, in the order of the options.

    Raises:
        BadInputError: naming an option that cannot be read or repeats a key.
    """
    return {key: _values(text) for key, text in _pairs("--sweep", options)}


def points_of(changes: Mapping[str, object], grid: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """The changes of each job: ``changes`` with one combination of the values of ``grid``; one job without a grid.

    Raises:
        BadInputError: if a key is in both.
    """
    if twice := next((key for key in grid if key in changes), ""):
        raise BadInputError(f"--set and --sweep both give {twice}", "give it in one of them")
    return [{**changes, **dict(zip(grid, values, strict=True))} for values in itertools.product(*grid.values())]


def _pairs(flag: str, options: Iterable[str]) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for option in options:
        key, equals, text = (part.strip() for part in option.partition("="))
        if not (equals and key and text):
            raise BadInputError(f"{flag} {option!r} has no key or no value", f"write {_FORMS[flag]}")
        if key in found:
            raise BadInputError(f"{flag} {option!r} names {key} again", "give each key in one option")
        found[key] = text
    return list(found.items())


def _values(text: str) -> list[object]:
    """The items of a TOML array, or the comma-separated parts."""
    if text.startswith("["):
        found = _toml(text)
        return found if isinstance(found, list) else [found]
    return [_toml(part.strip()) for part in text.split(",")]


def _toml(text: str) -> object:
    """A TOML value, or else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
