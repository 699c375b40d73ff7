"""Creates the data directory of another server of the same federation, which stands by until it is needed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll.server.backup.make import CA_FOLDER
from atoll.server.backup.restore import RESTORED_FILE
from atoll.server.disk.space import fsync_path, storage_error
from atoll.server.errors import InvalidRequestError
from atoll.server.identity.authority import AUTHORITY_FILES
from atoll.server.identity.files import PRIVATE_DIRECTORY_MODE
from atoll.server.stores import blob_place, database_place
from atoll.server.stores.blob_place import PLACE_FILE as BLOBS_FILE
from atoll.server.stores.database_place import PLACE_FILE


def make_standby(data: Path, folder: Path) -> tuple[Path, ...]:
    """Copy the files that servers of one federation share and that are not in the database.

    These are the certificate authority, whose key is the federation's root of trust, and the notes of where database
    and models are.

    Args:
        data: the data directory of a server, which may be running.
        folder: the new data directory; it must not exist or must be empty.

    Returns:
        The copied files, as paths in ``folder``.

    Raises:
        InvalidRequestError: if ``data`` is not a data directory, has its database or models in local files, or
            ``folder`` is not empty.
        StorageError: if the disk refuses.
    """
    _check(data, folder)
    paths = [Path(PLACE_FILE), Path(BLOBS_FILE), *(Path(CA_FOLDER) / name for name in AUTHORITY_FILES)]
    paths += [Path(name) for name in (RESTORED_FILE,) if (data / name).exists()]
    with _folder(folder):
        (folder / CA_FOLDER).mkdir(mode=PRIVATE_DIRECTORY_MODE)
        for path in paths:
            shutil.copy2(data / path, folder / path)  # with its mode
            fsync_path(folder / path)
        fsync_path(folder / CA_FOLDER)
    return tuple(folder / path for path in paths)


def _check(data: Path, folder: Path) -> None:
    if database_place.find(data) is None:
        raise InvalidRequestError(
            "standby.data", f"{data} is not a server's data directory", "say where it is with --data"
        )
    if database_place.noted(data) is None:
        raise InvalidRequestError(
            "standby.database",
            f"the database of {data} is a file in it, which no other server can use",
            "move it to PostgreSQL first: `atoll server migrate --database postgresql://...`",
        )
    if blob_place.find(data) is None:
        raise InvalidRequestError(
            "standby.blobs",
            f"the models of {data} are files in it, which no other server can use",
            "move them to a bucket first: `atoll server migrate --blobs s3://...`",
        )
    if folder.exists() and any(folder.iterdir()):
        raise InvalidRequestError("standby.folder", f"{folder} is not empty", "name a new folder")


@contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """Create the folder durably; remove its content if anything fails."""
    made = not folder.exists()
    try:
        folder.mkdir(mode=PRIVATE_DIRECTORY_MODE, parents=True, exist_ok=True)
        yield
        fsync_path(folder)
        fsync_path(folder.absolute().parent)
    except OSError as error:
        for path in folder.iterdir() if folder.exists() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        raise storage_error("standby.disk", f"{folder} cannot be written", error) from error
