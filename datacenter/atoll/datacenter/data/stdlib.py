"""The source text of Python's own standard library: real text that is on every machine."""

from __future__ import annotations

import platform
import sysconfig
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from atoll.datacenter.errors import DataError

Split = Literal["train", "held_out"]

HELD_OUT_OF_16 = 1
"""Of 16 files this many are held out, chosen by a digest of their path: about 6 %, the same in every version."""
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
"""Folders without the library's own text. Its tests are broken on purpose in places, and many systems lack them."""


def stdlib_documents(split: Split, folder: Path | None = None) -> Iterator[bytes]:
    """UTF-8 text of each file. Arguments, order and errors as of ``stdlib_files``."""
    return (path.read_bytes() for _, path in stdlib_files(split, folder))


def stdlib_files(split: Split, folder: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Name and path of each file, in the order of their names; a name is the path within the library.

    Args:
        split: the files to train on, or those held out.
        folder: where the library is; found out by default.

    Raises:
        DataError: if this Python came without its library's source text.
    """
    folder = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))
    names = [name for name in names if not _LEFT_OUT & set(name.split("/")[:-1])]
    if not names:
        raise DataError(
            f"{folder} holds no source text of Python's standard library: use a Python that was installed with it, or "
            'another [data] source, such as source = "text" with a path'
        )
    for name in names:
        if split_of(name) == split:
            yield name, folder / name


def split_of(name: str) -> Split:
    """Of a file by its path within the library, with forward slashes."""
    digest = blake2b(name.encode(), digest_size=1).digest()[0]
    return "held_out" if digest % 16 < HELD_OUT_OF_16 else "train"


def stdlib_name() -> str:
    """For errors and metrics."""
    return f"standard library of Python {platform.python_version()}"
