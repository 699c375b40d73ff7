"""Where the Unix sockets between the coordinator and its workers lie."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "atoll-"
LINK = "sockets"
"""In the data directory: leads to the folder, so that the next start finds what a killed server left."""


class SocketFolder:
    """A private folder with a short path: a Unix socket's has at most 107 bytes, a data directory may be deeper.

    Making it removes the one that a killed server of the same data directory has left.

    Args:
        data: the data directory; its server holds the directory's lock.
    """

    def __init__(self, data: Path) -> None:
        self._link = data / LINK
        self.remove()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._link.symlink_to(self.path)

    def address(self, name: str) -> str:
        """What gRPC calls the socket of that name."""
        return f"unix:{self.path / name}.sock"

    def remove(self) -> None:
        """Remove folder and link; nothing happens if they have gone."""
        try:
            left = self._link.readlink()
        except OSError:
            return
        if left.name.startswith(_PREFIX) and left.is_dir() and left.stat().st_uid == os.getuid():
            shutil.rmtree(left, ignore_errors=True)
        self._link.unlink(missing_ok=True)
