"""Disks for the system tests: small ones that fill up, read-only ones, and ones whose calls fail on demand."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.system.forker import MOUNT
from tests.system.processes import HERE
from tests.system.servers import Server

SHIM = HERE / "faulty_disk.c"
MIB = 1 << 20


def compiler() -> str | None:
    """A C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc")


def namespaces() -> Sequence[str]:
    """Return the command prefix for mounts in a new namespace; empty if this machine does not allow it."""
    unshare = shutil.which("unshare")
    for words in ((unshare, "-m"), (unshare, "-U", "-r", "-m")):
        if unshare and subprocess.run([*map(str, words), "true"], capture_output=True, check=False).returncode == 0:
            return [str(word) for word in words]
    return ()


def compiled(folder: Path) -> Path:
    """Compile the library that makes calls fail, in this folder."""
    library = folder / "faulty_disk.so"
    subprocess.run([str(compiler()), "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"], check=True)
    return library


class Faults:
    """Faults of one server's disk, by a library that is loaded before the C library.

    Args:
        server: the server, not started yet.
        library: see ``compiled``.
        faults: the file with the list of faults.
    """

    def __init__(self, server: Server, library: Path, faults: Path) -> None:
        self._list = faults
        server.env |= {"LD_PRELOAD": str(library), "ATOLL_FAULTS": str(self._list)}

    def begin(self, *faults: tuple[str, int, str]) -> None:
        """Make exactly these calls fail from now on, each as (call, errno, part of a path)."""
        prepared = self._list.with_suffix(".new")
        prepared.write_text("".join(f"{call} {number} {part}\n" for call, number, part in faults))
        prepared.replace(self._list)

    def end(self) -> None:
        """End all faults of the disk."""
        self._list.unlink()


class SmallDisk:
    """A tmpfs of ``size_mib`` as the server's data directory, in a mount namespace of its own."""

    def __init__(self, server: Server, size_mib: int, *, read_only: bool = False) -> None:
        self._server = server
        server.data.mkdir(parents=True)
        data = shlex.quote(str(server.data))
        mount = f"mount -t tmpfs -o size={size_mib}m,mode=700 tmpfs {data}"
        if read_only:
            mount += f" && mount -o remount,ro {data}"
        server.env[MOUNT] = mount

    @property
    def inside(self) -> Path:
        """The data directory as the server sees it."""
        return Path(f"/proc/{self._server.process.pid}/root{self._server.data.absolute()}")

    @property
    def _ballast(self) -> Path:
        return self.inside / "ballast"

    def fill(self, *, leave_bytes: int, path: Path | None = None) -> None:
        """Leave about this many bytes free (0: none), with a file at ``path`` or one that ``free`` removes."""
        with (path or self._ballast).open("ab") as file:
            if not leave_bytes:
                self._fill_up(file.fileno())
                return
            more = shutil.disk_usage(self.inside).free - leave_bytes
            os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, more)

    def free(self) -> None:
        """Free the space again."""
        self._ballast.unlink()

    @staticmethod
    def _fill_up(descriptor: int) -> None:
        block = bytes(4096)
        while True:
            try:
                os.write(descriptor, block)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    return
                raise
