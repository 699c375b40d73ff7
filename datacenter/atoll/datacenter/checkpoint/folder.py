"""The folder of a job's checkpoints.

::

    step-00000000040/             a checkpoint; its manifest has every file's digest
    step-00000000040/manifest.json
    step-00000000040/rank-00000.safetensors
    writing-00000000060/          being written, or left by a crash: never read, removed at the next write
    step-00000000020.damaged/     failed verification: never read, kept for inspection
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from atoll.datacenter.checkpoint.files import digest_of, write_durable
from atoll.datacenter.checkpoint.manifest import NAME, FileRecord, Manifest
from atoll.datacenter.durable import sync_folder

log = logging.getLogger(__name__)

_STEP = re.compile(r"^step-(\d{11})$")


def steps_in(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, oldest first; empty if there is no such folder."""
    if not folder.is_dir():
        return []
    return sorted(int(found[1]) for path in folder.iterdir() if (found := _STEP.match(path.name)))


def step_folder(folder: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return folder / f"step-{step:011d}"


def writing_folder(folder: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint while it is being written."""
    return folder / f"writing-{step:011d}"


def begin(writing: Path) -> None:
    """Create an empty folder for a checkpoint; removes what earlier writers left.

    Raises:
        OSError: if a file operation fails.
    """
    writing.parent.mkdir(parents=True, exist_ok=True)
    for path in writing.parent.glob("writing-*"):
        shutil.rmtree(path)
    writing.mkdir()


def publish(folder: Path, writing: Path, manifest: Manifest, keep: int) -> None:
    """Turn written files into a checkpoint: write the manifest, rename the folder, then remove the oldest checkpoints.

    Args:
        folder: folder of the checkpoints.
        writing: folder with the manifest's files, already synced.
        manifest: manifest of the checkpoint.
        keep: number of checkpoints to keep.

    Raises:
        OSError: if a file operation fails; the checkpoint then does not exist.
    """
    write_durable(writing / NAME, manifest.encoded())
    sync_folder(writing)
    place = step_folder(folder, manifest.step)
    if place.exists():
        place.rename(writing.with_name(f"{writing.name}.replaced"))
    writing.rename(place)
    sync_folder(folder)
    for step in steps_in(folder)[:-keep]:
        _remove(step_folder(folder, step))


def _remove(place: Path) -> None:
    """Remove the manifest first: after an interruption, the remaining files are not a checkpoint."""
    try:
        (place / NAME).unlink(missing_ok=True)
        shutil.rmtree(place)
    except OSError as error:
        log.warning("cannot remove an old checkpoint: %s: %s", place, error)


def set_aside(place: Path) -> Path:
    """Rename a damaged checkpoint so that it is not read again.

    Raises:
        OSError: if a file operation fails.
    """
    aside = place.with_name(f"{place.name}.damaged")
    if aside.exists():
        shutil.rmtree(aside)
    place.rename(aside)
    return aside


def damage(place: Path, files: Iterable[tuple[str, FileRecord]]) -> list[str]:
    """Describe damaged files of a checkpoint, one sentence each with the file's name; empty if all are intact."""
    return [problem for name, record in files if (problem := _damage(place / name, record))]


def _damage(path: Path, record: FileRecord) -> str | None:
    try:
        size = path.stat().st_size
        if size != record.size_bytes:
            return f"{path}: {size} bytes, not {record.size_bytes}: truncated or overwritten"
        if digest_of(path) != record.digest:
            return f"{path}: its digest differs from the one recorded when it was written: bits have changed"
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return None
