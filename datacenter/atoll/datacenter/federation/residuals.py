"""Rounding errors of what this rank has sent (error feedback, Karimireddy et al. 2019), in one file per update.

The errors after an update are right only if it counts; if it does not, the errors before it are right. So each update's
errors are written to a separate file while it is sent, and are on disk before it is reported. Rank 0 knows which update
counted last (``journal``), and names it in each order. Whenever a silo is killed, the next round therefore begins with
exactly the errors that the server lacks.

The files of the last two updates are kept, in case the server restarts the round of the last one. Without checkpoints
the files have no names, and disappear with the process.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from atoll.datacenter.durable import sync_folder
from atoll.wire.encoding import Encoding

Floats = npt.NDArray[np.float32]
FOLDER = "residuals"
"""Name of the folder beside the checkpoints."""
EXACT = frozenset({Encoding.FLOAT32, Encoding.FLOAT64})
"""Encodings whose rounding errors are too small to keep."""
_ITEM_BYTES = 4
_COPY_BYTES = 8 << 20


class Residuals:
    """Rounding errors of one rank, float32, by position in what it sends. One thread at a time uses it.

    Args:
        folder: folder of the files, shared by all ranks; None: they do not outlive the process.
        rank: number of this rank.
        scratch: folder for files that do not outlive the process.

    Attributes:
        upload: id of the update that the current errors belong to; empty: there are none.
    """

    def __init__(self, folder: Path | None, rank: int, scratch: Path) -> None:
        self._folder, self._rank, self._scratch = folder, rank, scratch
        self.upload = self._tag = ""
        self._files: dict[str, int] = {}
        self._next: int | None = None

    def close(self) -> None:
        """Close the files."""
        self._drop()
        for file in self._files.values():
            os.close(file)
        self._files, self.upload = {}, ""

    def adopt(self, upload: str, tag: str) -> None:
        """Continue with the errors after an update.

        Args:
            upload: id of the update that counted last; empty: begin without errors.
            tag: digest of what this rank sends: errors of another layout of ranks are dropped.

        Raises:
            OSError: if its file cannot be opened.
        """
        self._drop()
        if tag != self._tag:
            self.close()
        self._tag, self.upload = tag, ""
        if self._folder is not None and upload not in self._files and self._path(upload).exists():
            self._files[upload] = os.open(self._path(upload), os.O_RDONLY | os.O_CLOEXEC)
        if upload in self._files:
            self.upload = upload

    def read(self, first: int, out: Floats) -> None:
        """Write the current errors of positions [first, first + size) into ``out``; there must be some (``upload``).

        Raises:
            OSError: if the file cannot be read, or ends early.
        """
        if os.preadv(self._files[self.upload], [out.view(np.uint8).data], _ITEM_BYTES * first) != out.nbytes:
            raise OSError(f"the rounding errors of update {self.upload} end early")

    def begin(self, size: int, *, whole: bool) -> None:
        """Begin the errors after a new update; call ``put`` for all that it sends, then ``keep``.

        Args:
            size: number of elements that this rank sends of the whole model.
            whole: whether the update covers them all; the errors of others stay as they are.

        Raises:
            OSError: if the file cannot be made.
        """
        self._drop()
        if self._folder is None:
            self._next, name = tempfile.mkstemp(prefix="atoll-", suffix=".residuals", dir=self._scratch)
            Path(name).unlink()
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._next = os.open(self._writing(self._folder), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._next, _ITEM_BYTES * size)
        if not whole and self.upload:
            _copy(self._files[self.upload], self._next)

    def put(self, first: int, values: Floats) -> None:
        """Set errors after the new update; the same ones may be set again.

        Raises:
            OSError: if they cannot be written.
        """
        if self._next is not None:
            os.pwrite(self._next, np.ascontiguousarray(values).view(np.uint8).data, _ITEM_BYTES * first)

    def keep(self, upload: str) -> None:
        """Store the new errors durably under their update's id; drop those that no update can need any more.

        Raises:
            OSError: if a file operation fails.
        """
        if self._next is None:
            return
        if self._folder is not None:
            os.fsync(self._next)
            self._writing(self._folder).replace(self._path(upload))
            sync_folder(self._folder)
        self._files[upload] = self._next
        for old in self._files.keys() - {upload, self.upload}:
            os.close(self._files.pop(old))
        if self._folder is not None:
            needed = {self._path(upload), self._path(self.upload)}
            for path in set(self._folder.glob(f"errors-{self._rank:05d}-*")) - needed:
                path.unlink(missing_ok=True)

    def _writing(self, folder: Path) -> Path:
        return folder / f"writing-{self._rank:05d}"

    def _path(self, upload: str) -> Path:
        return (self._folder or self._scratch) / f"errors-{self._rank:05d}-{upload}-{self._tag}"

    def _drop(self) -> None:
        """Discard new errors that were not kept."""
        if self._next is not None and self._next not in self._files.values():
            os.close(self._next)
        self._next = None


def _copy(source: int, target: int) -> None:
    at = 0
    while block := os.pread(source, _COPY_BYTES, at):
        os.pwrite(target, block, at)
        at += len(block)
