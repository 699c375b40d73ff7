"""What a round starts from: this rank's parts of the global model, in a file, so that they take no memory of their own.

The file is mapped; its pages are the kernel's to write out and to take back. It does not outlive its process: after a
restart the parts are fetched again, chunk by chunk verified. A chunk of which several ranks of one machine hold
something is fetched once, by one of them: see ``kept``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from atoll.datacenter.federation.kept import KeptFile, Run, neighbours, share_out
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
    """See the module.

    Args:
        path: of the file; an old one is replaced.
        pieces: what this rank holds.
    """

    def __init__(self, path: Path, pieces: Sequence[Piece]) -> None:
        self._path, self.pieces = path, pieces
        self._file = KeptFile.make(path, pieces)
        self._marks = self._file.marks(len(pieces))
        self._places = {run.piece: run.place for run in reversed(self._file.runs)}
        self._files, self._mine = [self._file], 0
        self._here: dict[int, bytes] = {}
        self._chunk_bytes = 0
        self._plan: Mapping[int, list[tuple[KeptFile, Run]]] = {}

    def meet(self, device: torch.device) -> None:
        """Share what is to be fetched with the other ranks of this machine; collective, before anything is.

        From then on what a rank has fetched is whole when all of them have: they have to wait for each other before
        they read it, and with the next fetch until all have read it.
        """
        self._files, self._mine = neighbours(self._file, self._path, len(self.pieces), device)
        self._path.unlink(missing_ok=True)  # all have it open: without a name it is gone with them, however they end

    def close(self) -> None:
        """Remove the file; once."""
        for file in self._files:
            file.close()
        self._path.unlink(missing_ok=True)

    @property
    def changed(self) -> set[int]:
        """Numbers of the pieces that came with other bytes than were here, since ``taken_over``."""
        return {int(one) for one in np.flatnonzero(self._marks)}

    def taken_over(self) -> None:
        """Nothing counts as changed any more."""
        self._marks[:] = 0

    def of(self, index: int) -> Tensor:
        """The piece of this number, flat, in the layout's own type; shares the file's memory."""
        piece, first = self.pieces[index], self._places[index]
        size = piece.local.numel() * piece.span.spec.dtype.itemsize
        return torch.from_numpy(self._file.content[first : first + size]).view(DTYPES[piece.span.spec.dtype])

    def lacks(self, manifest: BlobManifest) -> list[int]:
        """The chunks of a model that this rank has to fetch, in order.

        Chunks that the model before had too, byte for byte, are here.
        """
        if manifest.chunk_bytes != self._chunk_bytes:
            self._here, self._chunk_bytes = {}, manifest.chunk_bytes
            self._plan = share_out(self._files, self._mine, manifest.chunk_bytes)
        return [one for one in self._plan if self._here.get(one) != manifest.chunk_digests[one]]

    def take(self, manifest: BlobManifest, number: int, payload: memoryview) -> None:
        """Keep what is held of a chunk that is not here yet: another one than before.

        Raises:
            DigestError: if it is not that chunk.
        """
        manifest.verify_chunk(number, payload)
        first, _ = manifest.chunk_range(number)
        chunk = np.frombuffer(payload, np.uint8)
        self._here.pop(number, None)
        for file, run in self._plan.get(number, ()):
            position, found = within(chunk, first, run.span)
            # A chunk that is nothing but a part of one range is another than before; of others it is looked at.
            file.write(run, position, found, fresh=found.size == chunk.size)
        self._here[number] = manifest.chunk_digests[number]
