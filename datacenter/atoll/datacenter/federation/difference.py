"""This rank's part of an update: local - global, plus the rounding errors of earlier rounds.

Douillard et al. 2023 (DiLoCo), algorithm 1, line 11, call global - local the outer gradient; the server adds updates,
hence the sign. Error feedback follows Karimireddy et al. 2019, algorithm 2: what an encoding rounds off is added to the
next round's update before encoding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from atoll.client import UpdateError
from atoll.client.silo import BLOCK_ELEMENTS, cut_ranges, inner_product
from atoll.datacenter.federation.ranges import Positions
from atoll.wire.encoding import Encoding, as_received, encode

if TYPE_CHECKING:
    from atoll.datacenter.federation.base import Base
    from atoll.datacenter.federation.pieces import Piece
    from atoll.wire.chunks import ElementRange

EXACT = frozenset({Encoding.FLOAT32, Encoding.FLOAT64})
"""Encodings whose rounding errors are not worth keeping."""
Floats = npt.NDArray[np.float32]


class Rounding:
    """Rounding errors of what this rank has sent so far; an extra of its checkpoints.

    Attributes:
        lost: float32 ``[elements]``; None: no errors.
    """

    def __init__(self) -> None:
        self.lost: Tensor | None = None

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return the errors for a checkpoint."""
        return {} if self.lost is None else {"lost": self.lost}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the errors of a checkpoint."""
        self.lost = state.get("lost")


class Difference:
    """An ``ElementSource`` over this rank's pieces; reads one chunk at a time.

    Args:
        base: the model that the round started from.
        rounding: errors of earlier rounds; dropped if their size is of another layout of ranks.
        max_abs: largest magnitude that the server accepts.
        wanted: numbers of the pieces to send.
        copied: copy the present values, because they will change during sending.

    Attributes:
        scale: factor of every element; its effect is not kept as a rounding error.
    """

    def __init__(
        self, base: Base, rounding: Rounding, max_abs: float, wanted: Sequence[int], *, copied: bool = False
    ) -> None:
        self._base, self._rounding, self._max_abs = base, rounding, max_abs
        self.ranges = tuple(span for index in wanted for span in base.pieces[index].sent_ranges)
        everything = [span for piece in base.pieces for span in piece.sent_ranges]
        self._positions = Positions(everything)
        self._ends = np.cumsum([piece.sends[1] - piece.sends[0] for piece in base.pieces])
        self._copies = {index: _sent(base.pieces[index]).clone() for index in wanted} if copied else {}
        self._room: Floats = np.empty(0, np.float32)
        self.scale = 1.0
        self._size = sum(span.size for span in everything)
        if rounding.lost is not None and rounding.lost.numel() != self._size:
            rounding.lost = None

    def read(self, elements: ElementRange, encoding: Encoding, out: npt.NDArray[np.generic]) -> None:
        """See ``atoll.client.silo.ElementSource``.

        Raises:
            UpdateError: naming the tensor, for a value that is not finite or beyond ``max_abs``.
        """
        if encoding is Encoding.FLOAT32:
            self._values(elements, encoding, out.view(np.float32))
        else:
            out[:] = encode(self._values(elements, encoding, self._scratch(elements.size)), encoding)

    def norm(self, encoding: Encoding) -> float:
        """Return the Euclidean norm of this rank's part before encoding; one pass, one block of memory.

        Raises:
            UpdateError: for a value that is not finite, or beyond ``max_abs``.
        """
        chunks = cut_ranges(self.ranges, BLOCK_ELEMENTS)
        parts = (self._values(chunk, encoding, self._scratch(chunk.size)) for chunk in chunks)
        return math.sqrt(math.fsum(inner_product(part, part) for part in parts))

    def settle(self, chunks: Iterable[ElementRange], encoding: Encoding) -> None:
        """Keep the rounding errors of an update that was counted.

        Args:
            chunks: chunks as they were sent.
            encoding: their encoding.
        """
        if encoding in EXACT:
            return
        if self._rounding.lost is None:
            self._rounding.lost = torch.zeros(self._size)
        for chunk in chunks:
            first = self._positions.of(chunk)
            values = self._values(chunk, encoding, self._scratch(chunk.size))
            lost = values - as_received(values, encoding)
            self._rounding.lost[first : first + chunk.size] = torch.from_numpy(lost)

    def _values(self, elements: ElementRange, encoding: Encoding, into: Floats) -> Floats:
        """Compute local - global plus earlier rounding errors in one pass, into ``into``, which is returned."""
        first = self._positions.of(elements)
        index = int(np.searchsorted(self._ends, first, side="right"))
        piece, values = self._base.pieces[index], torch.from_numpy(into)
        begin = first - (int(self._ends[index - 1]) if index else 0)
        local = self._copies.get(index, _sent(piece))[begin : begin + elements.size]
        start = self._base.of(index)[piece.sends[0] + begin :][: elements.size]
        torch.sub(local.to("cpu", torch.float32), start.to(torch.float32), out=values)
        if self._rounding.lost is not None and encoding not in EXACT:
            values += self._rounding.lost[first : first + elements.size]
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
