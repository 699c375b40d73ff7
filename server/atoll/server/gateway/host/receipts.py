"""Partial sums received from gateways: written to a file piece by piece, checked, and read from a memory map."""

from __future__ import annotations

import contextlib
import mmap
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from atoll.server.disk.space import storage_error
from atoll.server.errors import ConflictError, InvalidRequestError, LimitExceededError, NotFoundError
from atoll.server.gateway.pieces import Piece, bounds_of, piece_count, unpack
from atoll.server.ingest.file_node import PARTIAL
from atoll.server.ingest.node import FoldItem, SumKey

_ITEM_BYTES = 8
MAX_RECEIPTS = 64
"""Maximum number of partial sums that one gateway may send concurrently."""


class Receipt:
    """One partial sum being received, resumable; once complete, its file does not change. Methods block. Thread-safe.

    The server has asked for exactly these updates and knows the rest, so only the integers are sent.

    Args:
        path: file to write.
        key: key of the sum.
        items: the updates in it.
    """

    def __init__(self, path: Path, key: SumKey, items: Sequence[FoldItem]) -> None:
        self.key = key
        self.next = 0
        self.complete = False
        self._path = path
        self._items = tuple(items)
        self._weight = sum(item.weight for item in items)
        # each element of an update is at most its weight times max_abs, rounded on the grid
        self._most = self._weight * (int(key.grid.max_abs * key.grid.scale) + 1)
        self._hasher = blake3()
        self._lock = threading.Lock()

    def add(self, index: int, piece: Piece) -> None:
        """Write the next piece; a piece that has already arrived is ignored.

        Raises:
            ConflictError: if earlier pieces are missing.
            InvalidRequestError: if it is malformed, or exceeds what its updates can add up to.
            StorageError: if it cannot be written.
        """
        with self._lock:
            if self.complete or index < self.next:
                return
            if index > self.next or index >= piece_count(self.key.elements):
                raise ConflictError("partial.order", f"piece {index} comes, {self.next} is next", "ask for the status")
            start, stop = bounds_of(index, self.key.elements)
            sums = unpack(piece, stop - start)
            if max(int(sums.max()), -int(sums.min())) > self._most:
                raise InvalidRequestError(
                    "partial.magnitude",
                    "the sum holds more than its updates can add up to",
                    "send the sum of the updates",
                )
            raw = sums.astype("<i8", copy=False).tobytes()
            try:
                with self._path.open("r+b" if index else "wb") as file:
                    file.seek(start * _ITEM_BYTES)
                    file.write(raw)
            except OSError as error:
                raise storage_error(
                    "storage.partial", "a partial sum cannot be written", error, where=self._path
                ) from error
            self._hasher.update(raw)
            self.next = index + 1

    def finish(self, digest: bytes) -> None:
        """Compare the complete sum with its digest.

        Raises:
            ConflictError: if pieces are missing, or the digest does not match; the sum then starts over, unless it was
                complete.
        """
        with self._lock:
            if self.next != piece_count(self.key.elements):
                raise ConflictError("partial.order", f"piece {self.next} is missing", "ask for the status")
            if self._hasher.digest() != digest:
                if not self.complete:  # a complete one may be mapped: rewriting it would crash this process
                    self.next, self._hasher = 0, blake3()
                raise ConflictError("partial.digest", "the partial sum does not match its digest", "send it again")
            self.complete = True

    def sum(self) -> ReceivedSum:
        """The sum; the file may be removed afterwards."""
        return ReceivedSum(self._path, self.key, self._weight, frozenset(item.update_id for item in self._items))

    def remove(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


class ReceivedSum:
    """A ``PartialSum`` in a file, memory-mapped."""

    def __init__(self, path: Path, key: SumKey, total_weight: int, updates: frozenset[str]) -> None:
        self.size = key.elements
        self.grid = key.grid
        self.total_weight = total_weight
        self.updates = updates
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def sum_block(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The integer sums of elements [start, stop): a read-only view into the map."""
        return np.frombuffer(self._map, "<i8", stop - start, start * _ITEM_BYTES)


class Receipts:
    """The partial sums being received, by gateway and name. Only the event loop uses it, except for receipts' methods.

    Args:
        folder: folder of the files, which the server empties when it starts.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[tuple[str, str], Receipt] = {}

    def expect(self, gateway: str, name: str, key: SumKey, items: Sequence[FoldItem]) -> Receipt:
        """The receipt for the sum of that name, which is opened unless it exists.

        Raises:
            LimitExceededError: if the gateway has too many open receipts.
        """
        found = self._open.get((gateway, name))
        if found is None:
            if sum(at == gateway for at, _ in self._open) >= MAX_RECEIPTS:
                raise LimitExceededError(
                    "partial.places", f"{gateway} is sending {MAX_RECEIPTS} sums", "try again", 1.0
                )
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._folder / f"{gateway}-{secrets.token_hex(8)}{PARTIAL}"
            found = self._open[gateway, name] = Receipt(path, key, items)
        return found

    def get(self, gateway: str, name: str) -> Receipt:
        """The receipt of that name.

        Raises:
            NotFoundError: if there is none, because the server has restarted or no longer wants the sum.
        """
        found = self._open.get((gateway, name))
        if found is None:
            raise NotFoundError("partial.unknown", f"no partial sum {name[:64]!r} is expected", "drop it")
        return found

    def forget(self, gateway: str, name: str) -> None:
        """Remove a receipt and its file."""
        found = self._open.pop((gateway, name), None)
        if found is not None:
            found.remove()

    def forget_run(self, gateway: str, run: str, through: tuple[int, int] | None = None) -> None:
        """Remove the receipts of a run's attempts up to ``through``, or of all attempts."""
        for at, name in list(self._open):
            key = self._open[at, name].key
            if at == gateway and key.run == run and (through is None or (key.round, key.attempt) <= through):
                self.forget(at, name)
