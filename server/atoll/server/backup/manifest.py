"""The manifest of a backup: a list of its contents."""

from __future__ import annotations

import errno
import stat
from pathlib import Path, PurePosixPath
from typing import Annotated

from blake3 import blake3
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from atoll.server.errors import CorruptDataError, InvalidRequestError
from atoll.server.identity.files import PRIVATE_MODE, write_atomic

MANIFEST_FILE = "manifest.json"
FORMAT = 1
_MAX_BYTES = 64 << 20
_MAX_EPOCH_S = 2**37
"""Largest epoch second accepted: the year 6325, which every calendar can show."""


def _inside(path: str) -> str:
    """Check that a path is normalised and stays inside the folder."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or not pure.parts or ".." in pure.parts or str(pure) != path or "\x00" in path:
        raise ValueError(f"{path[:80]!r} does not stay inside the backup")
    return path


Count = Annotated[int, Field(ge=0, lt=2**63)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class File(BaseModel):
    """A file of the backup that is not a blob: its path in the folder, size, and BLAKE3 digest in hex."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Annotated[str, AfterValidator(_inside)]
    size_bytes: Count
    digest: Digest


class RunLine(BaseModel):
    """A run at the time of the backup: its id, name, status and number of released models."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    name: str
    status: str
    rounds_released: Count


class Manifest(BaseModel):
    """A whole backup; blobs are named by their digests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    atoll: str
    schema_revision: str
    made_at: Annotated[float, Field(ge=0.0, le=_MAX_EPOCH_S)]
    runs: tuple[RunLine, ...]
    files: tuple[File, ...]
    blobs: tuple[Digest, ...]
    stored_bytes: Count

    def write(self, folder: Path) -> None:
        """Write the manifest to the backup, durably; a folder without a manifest is not a backup."""
        write_atomic(folder / MANIFEST_FILE, self.model_dump_json(indent=1).encode(), mode=PRIVATE_MODE)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a backup.

    Raises:
        InvalidRequestError: if the folder is not a backup, or has another format.
        CorruptDataError: if the manifest cannot be read.
    """
    path = folder / MANIFEST_FILE
    try:
        with path.open("rb") as file:
            found = Manifest.model_validate_json(file.read(_MAX_BYTES))
    except FileNotFoundError:
        raise InvalidRequestError(
            "backup.none", f"{folder} is not a backup: it has no {MANIFEST_FILE}", "`atoll server backup` makes one"
        ) from None
    except OSError as error:
        raise CorruptDataError("backup.damaged", f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise CorruptDataError("backup.damaged", f"{path} cannot be read: {error}", "use another backup") from None
    if found.format != FORMAT:
        raise InvalidRequestError(
            "backup.format", f"{path} has format {found.format}, this program reads {FORMAT}", "use its own version"
        )
    return found


def file_entry(folder: Path, path: str) -> File:
    """The entry of a file of the backup.

    Raises:
        OSError: if it is not a regular file (a link points elsewhere, a pipe has no end), or cannot be read.
    """
    if not stat.S_ISREG((folder / path).lstat().st_mode):
        raise FileNotFoundError(errno.ENOENT, "it is not a regular file")
    hasher = blake3()
    hasher.update_mmap(folder / path)
    return File(path=path, size_bytes=(folder / path).stat().st_size, digest=hasher.hexdigest())
