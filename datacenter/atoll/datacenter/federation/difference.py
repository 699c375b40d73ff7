"""This rank's part of an update: local - global, plus the rounding errors of earlier rounds.

Douillard et al. 2023 (DiLoCo), algorithm 1, line 11, call global - local the outer gradient; the server adds updates,
hence the sign. Error feedback follows Karimireddy et al. 2019, algorithm 2: what an encoding rounds off is added to the
next round's update before encoding; see ``residuals``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from atoll.client import UpdateError
from atoll.client.silo import BLOCK_ELEMENTS, cut_ranges, inner_product
from atoll.datacenter.federation.ranges import Positions
from atoll.datacenter.federation.residuals import EXACT
from atoll.wire.encoding import Encoding, decode, encode

if TYPE_CHECKING:
    from atoll.datacenter.federation.base import Base
    from atoll.datacenter.federation.pieces import Piece
    from atoll.datacenter.federation.residuals import Residuals
    from atoll.wire.chunks import ElementRange

Floats = npt.NDArray[np.float32]


class Difference:
    """An ``ElementSource`` over this rank's pieces; reads one chunk at a time.

    Args:
        base: the model that the round started from.
        residuals: rounding errors; those after this update are set as it is read.
        max_abs: largest magnitude that the server accepts.
        wanted: numbers of the pieces to send.
        copied: copy the present values, because they will change during sending.

    Attributes:
        scale: factor of every element; its effect is not kept as a rounding error.
        tag: digest of what this rank sends of the whole model.
    """

    def __init__(
        self, base: Base, residuals: Residuals, max_abs: float, wanted: Sequence[int], *, copied: bool = False
    ) -> None:
        self._base, self._residuals, self._max_abs = base, residuals, max_abs
        self.ranges = tuple(span for index in wanted for span in base.pieces[index].sent_ranges)
        everything = [span for piece in base.pieces for span in piece.sent_ranges]
        self._positions = Positions(everything)
        self._ends = np.cumsum([piece.sends[1] - piece.sends[0] for piece in base.pieces])
        self._copies = {index: _sent(base.pieces[index]).clone() for index in wanted} if copied else {}
        self._room: Floats = np.empty(0, np.float32)
        self.scale = 1.0
        self._size = sum(span.size for span in everything)
        self._whole = self._size == sum(span.size for span in self.ranges)
        self.tag = blake2b(repr(everything).encode(), digest_size=8).hexdigest()

    def begin(self, encoding: Encoding) -> None:
        """Begin the rounding errors after this update: each ``read`` sets those of its elements.

        Raises:
            OSError: if their file cannot be made.
        """
        if encoding not in EXACT:
            self._residuals.begin(self._size, whole=self._whole)

    def read(self, elements: ElementRange, encoding: Encoding, out: npt.NDArray[np.generic]) -> None:
        """See ``atoll.client.silo.ElementSource``.

        Raises:
            UpdateError: naming the tensor, for a value that is not finite or beyond ``max_abs``.
            OSError: if rounding errors cannot be read or written.
        """
        if encoding is Encoding.FLOAT32:
            self._values(elements, encoding, out.view(np.float32))
            return
        values = self._values(elements, encoding, self._scratch(elements.size))
        out[:] = encode(values, encoding)
        if encoding not in EXACT:
            values -= decode(out.data, encoding, elements.size)
            self._residuals.put(self._positions.of(elements), values)

    def norm(self, encoding: Encoding) -> float:
        """Return the Euclidean norm of this rank's part before encoding; one pass, one block of memory.

        Raises:
            UpdateError: for a value that is not finite, or beyond ``max_abs``.
        """
        chunks = cut_ranges(self.ranges, BLOCK_ELEMENTS)
        parts = (self._values(chunk, encoding, self._scratch(chunk.size)) for chunk in chunks)
        return math.sqrt(math.fsum(inner_product(part, part) for part in parts))

    def keep(self, upload: str) -> None:
        """Keep the rounding errors after this update, all of whose elements have been read, under its id, durably.

        Raises:
            OSError: if the system refuses.
        """
        self._residuals.keep(upload)

    def _values(self, elements: ElementRange, encoding: Encoding, into: Floats) -> Floats:
        """Compute local - global plus earlier rounding errors in one pass, into ``into``, which is returned."""
        first = self._positions.of(elements)
        index = int(np.searchsorted(self._ends, first, side="right"))
        piece, values = self._base.pieces[index], torch.from_numpy(into)
        begin = first - (int(self._ends[index - 1]) if index else 0)
        local = self._copies.get(index, _sent(piece))[begin : begin + elements.size]
        start = self._base.of(index)[piece.sends[0] + begin :][: elements.size]
        torch.sub(local.to("cpu", torch.float32), start.to(torch.float32), out=values)
        if encoding not in EXACT:
            self._residuals.add(first, into)
        least, most = (float(one) for one in values.aminmax())
        if not (-self._max_abs <= least and most <= self._max_abs):  # NaN is neither
            raise UpdateError(
                f"local - global of tensor {piece.span.spec.name!r} has a value that is not finite or beyond "
                f"{self._max_abs:g}: lower the learning rate, or let the job take more (aggregation.max_abs)"
            )
        if self.scale != 1.0:
            values *= self.scale
        return into

    def _scratch(self, size: int) -> Floats:
        """Return memory for one chunk, the same each time."""
        if self._room.size < size:
            self._room = np.empty(size, np.float32)
        return self._room[:size]


def _sent(piece: Piece) -> Tensor:
    """Return what this rank sends of a piece, flat, sharing its memory."""
    return piece.local.reshape(-1)[slice(*piece.sends)]
