"""The small JSON files in which a participant keeps what was spent and promised: versioned, never half written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from atoll.client.errors import UsageError
from atoll.client.files import read_private, replace_file

T = TypeVar("T")
FOLDER = "privacy"
"""Where they lie in a state directory."""


def write_record(path: Path, version: int, document: Mapping[str, object], refusal: str) -> None:
    """Replace the file in one step.

    Args:
        path: the file.
        version: of the document.
        document: what it is to say; its version is added.
        refusal: what is not done without it.

    Raises:
        UsageError: if it cannot be written.
    """
    try:
        replace_file(path, json.dumps({"version": version, **document}, indent=1))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error}; {refusal}") from None


def read_record(path: Path, version: int, parse: Callable[[dict[str, Any]], T], loss: str) -> T | None:
    """The file as it was last written, by ``parse``; None if there is none.

    Args:
        path: the file.
        version: that this program reads.
        parse: makes of the document what it means; raises whatever it likes of one that means nothing.
        loss: what a file that is damaged asks for, and why.

    Raises:
        UsageError: if it cannot be read, is damaged, or is of another version.
    """
    text = read_private(path)
    if text is None:
        return None
    try:
        document = json.loads(text)
        if document["version"] != version:
            raise UsageError(f"{path} has version {document['version']}, this is version {version}; upgrade Atoll")
        return parse(document)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise UsageError(f"{path} is damaged ({type(error).__name__}: {error}); {loss}") from None


def to_json(value: float) -> float | str:
    """A number as the file has it: JSON has no infinity."""
    return value if math.isfinite(value) else "inf"


def from_json(value: float | str) -> float:
    """The number that ``to_json`` wrote.

    Raises:
        ValueError, TypeError: if there is none.
    """
    number = float(value)
    if math.isnan(number):
        raise ValueError("not a number")
    return number
