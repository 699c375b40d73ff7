"""The folder of the Unix sockets between the coordinator and its workers."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "atoll-"
LINK = "sockets"
"""Name of a link in the data directory to the folder, by which the next start finds a killed server's folder."""


class SocketFolder:
    """A private folder with a short path, since a Unix socket's path has at most 107 bytes.

    A data directory's path may be longer. The constructor removes the folder left by a killed server of the same data
    directory.

    Args:
        data: the data directory; the caller holds its lock.
    """

    def __init__(self, data: Path) -> None:
        self._link = data / LINK
        self.remove()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._link.symlink_to(self.path)

    def address(self, name: str) -> str:
        """The gRPC address of the socket of that name."""
        return f"unix:{self.path / name}.sock"

    def remove(self) -> None:
        """Remove folder and link, if they exist."""
        try:
            left = self._link.readlink()
        except OSError:
            return
        if left.name.startswith(_PREFIX) and left.is_dir() and left.stat().st_uid == os.getuid():
            shutil.rmtree(left, ignore_errors=True)
        self._link.unlink(missing_ok=True)
