"""LEAF's JSON (Caldas et al. 2018, https://arxiv.org/abs/1812.01097): rows by user."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.simulation.data.errors import FormatError
from atoll.simulation.data.loaders.examples import Examples, read_only

MAX_FILE_BYTES = 2 << 30
"""Largest file to read, in bytes."""


def load_leaf(path: str | Path) -> Examples:
    """Load one LEAF file, or all ``.json`` files of a folder in the order of their names.

    A file is ``{"users": [name, …], "num_samples": [rows, …], "user_data": {name: {"x": [row, …], "y": [label, …]}}}``;
    ``num_samples`` may be left out, and other keys are not read.

    Args:
        path: a file, or a folder such as LEAF's ``data/train``.

    Returns:
        Rows of one user after the other, with ``users``. Inputs are float32 if they are numbers, otherwise texts;
        labels are int64 if they are whole numbers, float64 if they are other numbers, otherwise texts.

    Raises:
        FormatError: if there is no file, one is not LEAF's JSON, rows differ in shape, or a user occurs twice.
    """
    files = _files(Path(path))
    users: list[str] = []
    inputs: list[Any] = []
    labels: list[Any] = []
    known: set[str] = set()
    for file in files:
        for user, x, y in _users(file):
            if user in known:
                raise FormatError(f"{file}: user {user!r} has data in two places: load training and test data apart")
            known.add(user)
            users += [user] * len(y)
            inputs += x
            labels += y
    if not labels:
        raise FormatError(f"{path} has no rows: give a LEAF file, or a folder of them")
    where = str(path)
    rows = _array(inputs, where, np.float32)
    return read_only(Examples(rows, _labels(labels, where), users=np.asarray(users, np.str_)))


def _files(path: Path) -> list[Path]:
    found = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not found:
        raise FormatError(f"{path} has no .json file: give the folder that LEAF wrote, such as data/train")
    return found


def _users(file: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Name, inputs and labels of each user of one file."""
    content = _parsed(file)
    users, data = content.get("users"), content.get("user_data")
    if not isinstance(users, list) or not isinstance(data, dict):
        raise FormatError(f'{file} is not LEAF\'s JSON: it needs a list "users" and an object "user_data"')
    sizes = content.get("num_samples", [None] * len(users))
    if not isinstance(sizes, list) or len(sizes) != len(users):
        raise FormatError(f'{file}: "num_samples" does not have one number for each of {len(users)} users')
    for user, size in zip(users, sizes, strict=True):
        yield str(user), *_rows(file, user, data.get(user), size)


def _rows(file: Path, user: object, found: object, size: object) -> tuple[list[Any], list[Any]]:
    match found:
        case {"x": list(x), "y": list(y)} if len(x) == len(y):
            if size is not None and size != len(y):
                raise FormatError(
                    f"{file}: user {user!r} has {len(y)} rows, but num_samples says {size}: it is damaged"
                )
            return x, y
    raise FormatError(f'{file}: user {user!r} has no lists "x" and "y" of one length in "user_data"')


def _parsed(file: Path) -> dict[str, Any]:
    try:
        if not file.exists():
            raise FormatError(
                f"{file} does not exist: give a LEAF file, or the folder that LEAF wrote, such as data/train"
            )
        if (size := file.stat().st_size) > MAX_FILE_BYTES:
            raise FormatError(f"{file} has {size:,} bytes, more than {MAX_FILE_BYTES:,}: split it")
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise FormatError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise FormatError(f"{file} is not LEAF's JSON: it contains no object")
    return content


def _labels(values: Sequence[Any], where: str) -> NDArray[Any]:
    labels = _array(values, where, np.float64)
    whole = labels.dtype == np.float64 and bool((labels == np.floor(labels)).all())
    return labels.astype(np.int64) if whole else labels


def _array(values: Sequence[Any], where: str, numbers: type[np.floating[Any]]) -> NDArray[Any]:
    """Rows as one array: numbers if all are, otherwise texts."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise FormatError(f"{where}: rows differ in shape: {error}") from error
    if array.dtype.kind in "iufb":
        return array.astype(numbers)
    if array.dtype.kind == "U":
        return array
    raise FormatError(f"{where}: rows hold {array.dtype}: give numbers or texts of one shape")
