"""Versioned JSON files, written atomically, for a participant's privacy ledgers and promises."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from atoll.client._state.files import read_private, replace_file
from atoll.client.errors import UsageError

T = TypeVar("T")
FOLDER = "privacy"
"""Folder of the privacy records in a state directory."""


def write_record(path: Path, version: int, document: Mapping[str, object], refusal: str) -> None:
    """Replace the file atomically.

    Args:
        path: the file.
        version: of the document.
        document: its content; the version is added.
        refusal: for the error: what is refused while the file cannot be written.

    Raises:
        UsageError: if it cannot be written.
    """
    try:
        replace_file(path, json.dumps({"version": version, **document}, indent=1))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error}; {refusal}") from None


def read_record(path: Path, version: int, parse: Callable[[dict[str, Any]], T], loss: str) -> T | None:
    """The content of the file, parsed by ``parse``; None if there is no file.

    Args:
        path: the file.
        version: the version that this program reads.
        parse: parses the document; may raise any error of a malformed document (ValueError, TypeError, KeyError, ...).
        loss: what to do about a damaged file, for the error.

    Raises:
        UsageError: if the file cannot be read, is damaged, or has another version.
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
    """A number as written to the file, with a text for infinity, which JSON lacks."""
    return value if math.isfinite(value) else "inf"


def from_json(value: float | str) -> float:
    """The number that ``to_json`` wrote.

    Raises:
        ValueError, TypeError: if it is not a number.
    """
    number = float(value)
    if math.isnan(number):
        raise ValueError("not a number")
    return number
