"""Files with secrets: written atomically, readable by their owner only."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from atoll.server.disk.space import fsync_directory

PRIVATE_MODE = 0o600
PUBLIC_MODE = 0o644
PRIVATE_DIRECTORY_MODE = 0o700
_MAX_BYTES = 1 << 20


def write_atomic(path: Path, data: bytes, *, mode: int) -> None:
    """Replace the content of ``path`` durably; a crash leaves the old file or the new one, never a part.

    Raises:
        OSError: if the directory cannot be written to.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def read_private(path: Path) -> bytes:
    """Read a file that only its owner may read or write (1 MiB at most).

    Raises:
        PermissionError: if group or others have any permission on it; the message has the remedy.
        OSError: if it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise PermissionError(
                f"{path} holds a private key but has mode {mode:04o}: other users may have read it; "
                f"if you are sure that none did, run chmod 600 {path}"
            )
        return file.read(_MAX_BYTES)
