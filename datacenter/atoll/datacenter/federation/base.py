"""The model that a round starts from: this rank's parts of the global model, kept in a file to save memory.

The file is mapped; the kernel writes its pages out and reads them back. It does not outlive its process: after a
restart the parts are fetched again and verified chunk by chunk. A chunk that several ranks of one machine need is
fetched once, by one of them; see ``base_file``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from atoll.datacenter.federation.base_file import BaseFile, FileRange, neighbours, share_out
from atoll.datacenter.federation.ranges import within
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
    """This rank's parts of the global model; see the module.

    Args:
        path: path of the file; an old file is replaced.
        pieces: the parts that this rank holds.
    """

    def __init__(self, path: Path, pieces: Sequence[Piece]) -> None:
        self._path, self.pieces = path, pieces
        self._file = BaseFile.make(path, pieces)
        self._marks = self._file.marks(len(pieces))
        self._places = {file_range.piece: file_range.place for file_range in reversed(self._file.ranges)}
        self._files, self._mine = [self._file], 0
        self._here: dict[int, bytes] = {}
        self._chunk_bytes = 0
        self._plan: Mapping[int, list[tuple[BaseFile, FileRange]]] = {}

    def meet(self, device: torch.device) -> None:
        """Share the fetching with the other ranks of this machine; collective, before anything is fetched.

        From then on the data is complete only when all of these ranks have fetched: they must wait for each other
        before they read it, and fetch again only after all have read it.
        """
        self._files, self._mine = neighbours(self._file, self._path, len(self.pieces), device)
        self._path.unlink(missing_ok=True)  # all ranks have it open: it disappears with them, however they end

    def close(self) -> None:
        """Remove the file; call it once."""
        for file in self._files:
            file.close()
        self._path.unlink(missing_ok=True)

    @property
    def changed(self) -> set[int]:
        """Return the numbers of the pieces that arrived with different bytes since ``taken_over``."""
        return {int(one) for one in np.flatnonzero(self._marks)}

    def taken_over(self) -> None:
        """Mark every piece as unchanged."""
        self._marks[:] = 0

    def of(self, index: int) -> Tensor:
        """Return the piece with this number, flat, in the layout's dtype; shares the file's memory."""
        piece, first = self.pieces[index], self._places[index]
        size = piece.local.numel() * piece.span.spec.dtype.itemsize
        return torch.from_numpy(self._file.content[first : first + size]).view(DTYPES[piece.span.spec.dtype])

    def lacks(self, manifest: BlobManifest) -> list[int]:
        """Return the chunks of a model that this rank must fetch, in order.

        Chunks that are byte for byte the same as in the previous model are here already.
        """
        if manifest.chunk_bytes != self._chunk_bytes:
            self._here, self._chunk_bytes = {}, manifest.chunk_bytes
            self._plan = share_out(self._files, self._mine, manifest.chunk_bytes)
        return [one for one in self._plan if self._here.get(one) != manifest.chunk_digests[one]]

    def take(self, manifest: BlobManifest, number: int, payload: memoryview) -> None:
        """Store what this rank holds of a chunk that was missing.

        Raises:
            DigestError: if the payload is not that chunk.
        """
        manifest.verify_chunk(number, payload)
        first, _ = manifest.chunk_range(number)
        chunk = np.frombuffer(payload, np.uint8)
        self._here.pop(number, None)
        for file, file_range in self._plan.get(number, ()):
            position, found = within(chunk, first, file_range.span)
            # A missing chunk that lies within one range has changed; other chunks are compared.
            file.write(file_range, position, found, fresh=found.size == chunk.size)
        self._here[number] = manifest.chunk_digests[number]
