"""The source text of Python's standard library: real text that is on every machine."""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from atoll.datacenter.errors import DataError

Split = Literal["train", "held_out"]

HELD_OUT_OF_16 = 1
"""Files held out of every 16, chosen by a digest of their path: about 6 %, the same in every version."""
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
"""Folders left out. Parts of the library's tests are broken on purpose, and many systems lack them."""


def stdlib_documents(split: Split, folder: Path | None = None) -> Iterator[bytes]:
    """Yield the UTF-8 text of each file. Arguments, order and errors as in ``stdlib_files``."""
    return (path.read_bytes() for _, path in stdlib_files(split, folder))


def stdlib_files(split: Split, folder: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each file, sorted by name; a name is the path within the library.

    Args:
        split: training files or held-out files.
        folder: folder of the library; found automatically by default.

    Raises:
        DataError: if this Python has no source text of the library.
    """
    folder = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    names = sorted(_names_in(folder))
    if not names:
        raise DataError(
            f"{folder} has no source text of Python's standard library: use a Python installed with it, or "
            'another [data] source, such as source = "text" with a path'
        )
    for name in names:
        if split_of(name) == split:
            yield name, folder / name


def _names_in(folder: Path) -> Iterator[str]:
    """Yield the name of each file as a string: paths would be slow, as each rank lists thousands of files."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        inside = "" if parent == str(folder) else Path(parent).relative_to(folder).as_posix() + "/"
        yield from (inside + name for name in files if name.endswith(".py"))


def split_of(name: str) -> Split:
    """Return the split of a file by its path within the library, with forward slashes."""
    digest = blake2b(name.encode(), digest_size=1).digest()[0]
    return "held_out" if digest % 16 < HELD_OUT_OF_16 else "train"


def stdlib_name() -> str:
    """Return the name of the library, for errors and metrics."""
    return f"standard library of Python {platform.python_version()}"
