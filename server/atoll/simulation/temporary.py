"""Temporary folders for simulations without a folder: in memory if there is enough of it.

A process has one root folder for all of them, and a shell that waits for the process to end. The shell notices any end,
because a pipe closes, and then removes the folder. So a killed simulation leaves nothing in memory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux has a file system in memory
LEAST_MEMORY_BYTES = 2 << 30
"""Minimum free bytes for using the in-memory file system: some containers have only 64 MiB."""
_REMOVE_AT_END = 'trap "" HUP INT TERM; read -r _; rm -rf -- "$1"'
_bases: dict[tuple[int, Path | None], tuple[Path, int, subprocess.Popen[bytes]]] = {}
"""By process and location: the folder, the end of the pipe that stays open until the process ends, and the shell."""


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """An empty folder; removed if the block fails.

    Afterwards subfolders are removed and files are kept, because a result needs only the database.
    """
    folder = new_folder()
    try:
        yield folder
        for part in folder.iterdir():
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def new_folder() -> Path:
    """An empty folder, removed at the latest when this process ends."""
    return Path(tempfile.mkdtemp(dir=_base()))


def _base() -> Path:
    try:
        roomy = shutil.disk_usage(MEMORY).free >= LEAST_MEMORY_BYTES
    except OSError:
        roomy = False
    place = MEMORY if roomy else None
    found = _bases.get((os.getpid(), place))
    if found is None:
        found = _bases[os.getpid(), place] = _watched(place)
    return found[0]


def _watched(place: Path | None) -> tuple[Path, int, subprocess.Popen[bytes]]:
    """A folder that a shell removes when this process and its forks have ended."""
    base = Path(tempfile.mkdtemp(prefix="atoll-simulation-", dir=place))
    reader, writer = os.pipe()
    shell = subprocess.Popen(
        ["/bin/sh", "-c", _REMOVE_AT_END, "sh", str(base)],
        stdin=reader,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    os.close(reader)
    return base, writer, shell
