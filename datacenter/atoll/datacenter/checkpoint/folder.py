"""The folder of a job's checkpoints.

::

    step-00000000040/             a checkpoint: has a manifest, names every file's digest
    step-00000000040/manifest.json
    step-00000000040/rank-00000.safetensors
    writing-00000000060/          being written, or left behind by a crash: never read, removed at the next write
    step-00000000020.damaged/     did not verify: never read, kept for you to look at
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
    """Steps of the checkpoints that are there, oldest first; none if there is no such folder."""
    if not folder.is_dir():
        return []
    return sorted(int(found[1]) for path in folder.iterdir() if (found := _STEP.match(path.name)))


def step_folder(folder: Path, step: int) -> Path:
    """Of the checkpoint of a step."""
    return folder / f"step-{step:011d}"


def writing_folder(folder: Path, step: int) -> Path:
    """Of the checkpoint of a step until it is whole."""
    return folder / f"writing-{step:011d}"


def begin(writing: Path) -> None:
    """Make a new empty folder to write a checkpoint to; what earlier writers left behind is removed.

    Raises:
        OSError: if the disk refuses.
    """
    writing.parent.mkdir(parents=True, exist_ok=True)
    for path in writing.parent.glob("writing-*"):
        shutil.rmtree(path)
    writing.mkdir()


def publish(folder: Path, writing: Path, manifest: Manifest, keep: int) -> None:
    """Make a checkpoint of what was written: the manifest, then the name; then remove the oldest.

    Args:
        folder: of the checkpoints.
        writing: has the manifest's files, durable.
        manifest: of the checkpoint.
        keep: how many remain.

    Raises:
        OSError: if the disk refuses; the checkpoint is then not there.
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
    """The manifest first: what is left of a removal cut short is no checkpoint."""
    try:
        (place / NAME).unlink(missing_ok=True)
        shutil.rmtree(place)
    except OSError as error:
        log.warning("an old checkpoint stays: %s: %s", place, error)


def set_aside(place: Path) -> Path:
    """Give a damaged checkpoint a name under which nobody looks for one.

    Raises:
        OSError: if the disk refuses.
    """
    aside = place.with_name(f"{place.name}.damaged")
    if aside.exists():
        shutil.rmtree(aside)
    place.rename(aside)
    return aside


def damage(place: Path, files: Iterable[tuple[str, FileRecord]]) -> list[str]:
    """What is wrong with files of a checkpoint, each sentence naming its file; empty if nothing is."""
    return [problem for name, record in files if (problem := _damage(place / name, record))]


def _damage(path: Path, record: FileRecord) -> str | None:
    try:
        size = path.stat().st_size
        if size != record.size_bytes:
            return f"{path}: {size} bytes, not {record.size_bytes}: cut short or written over"
        if digest_of(path) != record.digest:
            return f"{path}: its digest is not the one that was written: bits have changed"
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return None
