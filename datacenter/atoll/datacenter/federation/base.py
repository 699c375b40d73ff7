"""What a round starts from: this rank's parts of the global model, in a file, so that they take no memory of their own.

The file is mapped; its pages are the kernel's to write out and to take back. It is this process's alone and does not
outlive it: after a restart the parts are fetched again, chunk by chunk verified.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from atoll.datacenter.federation.ranges import Bytes, chunks_of, within
from atoll.wire.chunks import ElementRange
from atoll.wire.layout import Dtype

if TYPE_CHECKING:
    from atoll.datacenter.federation.pieces import Piece
    from atoll.wire.digest import BlobManifest

DTYPES = {
    Dtype.FLOAT32: torch.float32,
    Dtype.FLOAT64: torch.float64,
    Dtype.FLOAT16: torch.float16,
    Dtype.BFLOAT16: torch.bfloat16,
}


class Base:
    """See the module.

    Args:
        path: of the file; an old one is written over.
        pieces: what this rank holds.

    Attributes:
        changed: numbers of the pieces that came with other bytes than were here; for the caller to clear.
    """

    def __init__(self, path: Path, pieces: Sequence[Piece]) -> None:
        self._path, self.pieces = path, pieces
        self.changed: set[int] = set(range(len(pieces)))
        self._places: list[tuple[int, int]] = []
        end = 0
        for piece in pieces:
            size = piece.local.numel() * piece.span.spec.dtype.itemsize
            self._places.append((end, end + size))
            end += -(-size // 8) * 8  # so that each piece is aligned to its type
        self._here: dict[int, bytes] = {}
        self._chunk_bytes = 0
        self._descriptor = _opened(path, max(end, 1))
        self._bytes: Bytes = np.frombuffer(mmap.mmap(self._descriptor, max(end, 1)), np.uint8)
        self._spans = list(self._in_bytes())

    def close(self) -> None:
        """Remove the file; once."""
        os.close(self._descriptor)
        self._path.unlink(missing_ok=True)

    def of(self, index: int) -> Tensor:
        """The piece of this number, flat, in the layout's own type; shares the file's memory."""
        first, last = self._places[index]
        return torch.from_numpy(self._bytes[first:last]).view(DTYPES[self.pieces[index].span.spec.dtype])

    def lacks(self, manifest: BlobManifest) -> list[int]:
        """The chunks of a model in which something lies that is not here yet, in order.

        Chunks that the model before had too, byte for byte, are here.
        """
        if manifest.chunk_bytes != self._chunk_bytes:
            self._here, self._chunk_bytes = {}, manifest.chunk_bytes
        wanted = {int(one) for _, span, _ in self._spans for one in chunks_of(span, manifest.chunk_bytes)}
        return sorted(one for one in wanted if self._here.get(one) != manifest.chunk_digests[one])

    def take(self, manifest: BlobManifest, number: int, payload: memoryview) -> None:
        """Keep what this rank holds of a chunk that is not here yet: another one than before.

        Raises:
            DigestError: if it is not that chunk.
        """
        manifest.verify_chunk(number, payload)
        first, stop = manifest.chunk_range(number)
        chunk = np.frombuffer(payload, np.uint8)
        self._here.pop(number, None)
        for index, span, place in self._spans:
            if span.offset < stop and first < span.stop:
                position, found = within(chunk, first, span)
                self._write(index, place + position, found, whole=found.size == chunk.size)
        self._here[number] = manifest.chunk_digests[number]

    def _write(self, index: int, place: int, found: Bytes, *, whole: bool) -> None:
        """A chunk that is nothing but a part of one range is another than before; of others it is looked at.

        By system calls: the first store to a mapped page after the kernel has written it out costs a fault.
        """
        if not whole and np.array_equal(self._bytes[place : place + found.size], found):
            return
        self.changed.add(index)
        left = found.data
        while left.nbytes:
            written = os.pwrite(self._descriptor, left, place)
            place, left = place + written, left[written:]

    def _in_bytes(self) -> Iterator[tuple[int, ElementRange, int]]:
        """Each range of each piece by number, counted in bytes of the blob, and where its bytes are kept."""
        for index, (piece, (place, _)) in enumerate(zip(self.pieces, self._places, strict=True)):
            width, at = piece.span.spec.dtype.itemsize, place
            for span in piece.ranges:
                offset = piece.span.byte_start + (span.offset - piece.span.start) * width
                scaled = ElementRange(offset, span.block * width, span.stride * width, span.count)
                yield index, scaled, at
                at += scaled.size


def _opened(path: Path, size: int) -> int:
    """A new file; a full disk is found now, not by a signal later."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
