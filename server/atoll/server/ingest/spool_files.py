"""Lists, writes and removes the spool's files, and translates errors of a failing disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from atoll.server.disk.space import storage_error
from atoll.server.errors import CorruptDataError, ServerError, TooLateError
from atoll.server.ingest.committed import Committed
from atoll.server.ingest.segment import INDEX
from atoll.server.ingest.small_update_files import MOST_FILES, open_small_update


def refused_by_disk(error: OSError, what: str) -> ServerError:
    """The error for a participant whose update could not be written."""
    if isinstance(error, FileNotFoundError):  # the folder was removed during the write
        return TooLateError(
            "round.over", "the round is over, its uploads have been removed", "wait for the next invitation"
        )
    return storage_error("storage.spool", what, error)


def participant_of(path: Path) -> str:
    """The participant whose uploads are at a path in an attempt's folder; participant ids contain no dot."""
    return path.name.partition(".")[0]


def small_update_of(folder: Path, participant: str, digest: str) -> Committed | None:
    """The participant's small update with that digest, or None.

    Raises:
        CorruptDataError: if it is not found and another update is damaged.
        StorageError: if the disk refuses.
    """
    damage: CorruptDataError | None = None
    for number in range(MOST_FILES):
        try:
            found = open_small_update(folder, participant, digest, number)
        except CorruptDataError as error:
            damage = error
            continue
        if found is not None:
            return found
    if damage is not None:
        raise damage
    return None


def index_files(folder: Path) -> Iterator[Path]:
    """The index files of all uploads in a participant's folder; empty if the folder does not exist."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as uploads:
        for upload in uploads:
            if upload.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError), os.scandir(upload.path) as files:
                    yield from (Path(file.path) for file in files if file.name.endswith(INDEX))


def write_durably(path: Path, temporary: Path, content: bytes) -> None:
    """Write a file under a temporary name, sync it, and rename it. Raises ``OSError``."""
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        remove_files(temporary)
        raise


def remove_files(*paths: Path) -> None:
    """Remove files, as far as the disk allows."""
    for path in paths:
        with contextlib.suppress(OSError):  # the disk is already failing; leftovers are deleted with the round
            path.unlink(missing_ok=True)


def size_of(path: Path) -> int:
    """Bytes of a file; 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
