"""Files written in the background: order kept, each byte hashed on its way, a bounded number of blocks under way."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

from atoll.wire.digest import BlobManifest, ManifestBuilder

MAX_PENDING = 4
"""Blocks handed over and not yet written, at most."""

Block = Mapping[str, npt.NDArray[np.generic]]


class _Sink:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._builder = ManifestBuilder()

    def write(self, piece: npt.NDArray[np.generic]) -> None:
        rest = piece.data.cast("B")
        self._builder.update(rest)
        while rest.nbytes:  # an unbuffered file may take a part only
            rest = rest[self._file.write(rest) :]

    def finish(self) -> BlobManifest:
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._builder.finish()


class BlobWriter:
    """Appends blocks to several files at once, on one thread of its own; use it in a ``with`` statement.

    Holds at most ``MAX_PENDING`` blocks.

    Args:
        files: opened for writing, by the names that blocks use; they are neither closed nor renamed here.
    """

    def __init__(self, files: Mapping[str, BinaryIO]) -> None:
        self._sinks = {name: _Sink(file) for name, file in files.items()}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="blob-writer")
        self._pending: deque[Future[None]] = deque()

    def append(self, block: Block) -> None:
        """Hand over the next piece of each file; the arrays must not be changed afterwards.

        Raises:
            OSError: if an earlier block could not be written.
        """
        while len(self._pending) >= MAX_PENDING:
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._write, block))

    def finish(self) -> dict[str, BlobManifest]:
        """Wait for the last block, fsync every file, and give the manifests.

        Raises:
            OSError: if a file could not be written or fsynced.
        """
        while self._pending:
            self._pending.popleft().result()
        return {name: sink.finish() for name, sink in self._sinks.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _write(self, block: Block) -> None:
        for name, piece in block.items():
            self._sinks[name].write(piece)
