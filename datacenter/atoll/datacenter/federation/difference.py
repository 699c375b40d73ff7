"""This rank's part of an update: local - global, plus the rounding errors of earlier rounds.

Douillard et al. 2023 (DiLoCo), algorithm 1, line 11, call global - local the outer gradient; the server adds updates,
hence the sign. Error feedback follows Karimireddy et al. 2019, algorithm 2: what an encoding rounds off is added to the
next round's update before encoding; see ``residuals``.

Each chunk is computed and encoded on the device of the weights, in a ``Lane`` beside other work. With a GPU, the model
that the round started from and the errors are copied to it; the encoded chunk and the new errors are copied back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from atoll.client import UpdateError
from atoll.client.silo import BLOCK_ELEMENTS, cut_ranges, inner_product
from atoll.datacenter.federation.quantise import quantise
from atoll.datacenter.federation.ranges import Positions
from atoll.datacenter.federation.residuals import EXACT
from atoll.wire.encoding import Encoding

if TYPE_CHECKING:
    from atoll.datacenter.federation.base import Base
    from atoll.datacenter.federation.lane import Lane
    from atoll.datacenter.federation.pieces import Piece
    from atoll.datacenter.federation.residuals import Residuals
    from atoll.wire.chunks import ElementRange

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Flight:
    """A chunk that the device is computing; its tensors are on the host, complete once ``wait`` has returned.

    Attributes:
        elements: the chunk.
        first: its position in what this rank sends.
        tensor: name of its tensor.
        bounds: its lowest and highest value.
        result: its bytes if it was encoded, else its values.
        errors: what the encoding rounds off; None for exact ones.
        wait: waits for the device.
    """

    elements: ElementRange
    first: int
    tensor: str
    bounds: Tensor
    result: Tensor
    errors: Tensor | None
    wait: Callable[[], object]


class Difference:
    """An ``ElementSource`` over this rank's pieces; it computes chunk by chunk, at most one ahead.

    Args:
        base: the model that the round started from.
        residuals: rounding errors; those after this update are set as it is read.
        max_abs: largest magnitude that the server accepts.
        wanted: numbers of the pieces to send.
        lane: copies between host and device.

    Attributes:
        scale: factor of every element; its effect is not kept as a rounding error.
        tag: digest of what this rank sends of the whole model.
    """

    def __init__(self, base: Base, residuals: Residuals, max_abs: float, wanted: Sequence[int], lane: Lane) -> None:
        self._base, self._residuals, self._max_abs, self._lane = base, residuals, max_abs, lane
        self.ranges = tuple(span for index in wanted for span in base.pieces[index].sent_ranges)
        everything = [span for piece in base.pieces for span in piece.sent_ranges]
        self._positions = Positions(everything)
        self._ends = np.cumsum([piece.sends[1] - piece.sends[0] for piece in base.pieces])
        self.scale = 1.0
        self._size = sum(span.size for span in everything)
        self._whole = self._size == sum(span.size for span in self.ranges)
        self.tag = blake2b(repr(everything).encode(), digest_size=8).hexdigest()
        self._next: dict[ElementRange, ElementRange] = {}
        self._flight: _Flight | None = None
        self._held: dict[ElementRange, Bytes] = {}

    def begin(self, chunks: Sequence[ElementRange], encoding: Encoding) -> None:
        """Begin to send chunks in this order; each ``read`` also sets the rounding errors of its elements.

        Raises:
            OSError: if the file of rounding errors cannot be made.
        """
        if self._held:
            return
        self._next = dict(pairwise(chunks))
        if encoding not in EXACT:
            self._residuals.begin(self._size, whole=self._whole)

    def hold(self, chunks: Sequence[ElementRange], encoding: Encoding) -> None:
        """Encode all chunks now into host memory, so that the weights may change while they are sent.

        Raises:
            UpdateError, OSError: as ``begin`` and ``read``.
        """
        self.begin(chunks, encoding)
        for flight in self._flights(chunks, encoding, encoded=True):
            self._held[flight.elements] = flight.result.numpy().copy()

    def read(self, elements: ElementRange, encoding: Encoding, out: npt.NDArray[np.generic]) -> None:
        """See ``atoll.client.silo.ElementSource``.

        Raises:
            UpdateError: naming the tensor, for a value that is not finite or beyond ``max_abs``.
            OSError: if rounding errors cannot be read or written.
        """
        payload = self._held.get(elements)
        in_place = self._lane.device.type == "cpu" and not self._lane.runs_ahead
        if payload is None and encoding is Encoding.FLOAT32 and in_place:
            buffer = torch.from_numpy(out.view(np.float32))
            self._landed(self._launched(elements, encoding, encoded=True, buffer=buffer))
            return
        if payload is None:
            flight, self._flight = self._flight, None
            if flight is None or flight.elements != elements:
                flight = self._launched(elements, encoding, encoded=True)
            following = self._next.get(elements)
            if following is not None and self._lane.runs_ahead:
                self._flight = self._launched(following, encoding, encoded=True)
            payload = self._landed(flight).result.numpy()
        out.view(np.uint8)[:] = payload

    def keep(self, upload: str) -> None:
        """Store the rounding errors after this update durably under its id; all its elements must have been read.

        Raises:
            OSError: if a file operation fails.
        """
        self._residuals.keep(upload)

    def norm(self, encoding: Encoding) -> float:
        """Return the Euclidean norm of this rank's part before encoding; one pass, two blocks of memory.

        Raises:
            UpdateError: for a value that is not finite, or beyond ``max_abs``.
        """
        chunks = tuple(cut_ranges(self.ranges, BLOCK_ELEMENTS))
        values = (flight.result.numpy() for flight in self._flights(chunks, encoding, encoded=False))
        return math.sqrt(math.fsum(inner_product(one, one) for one in values))

    def _flights(self, chunks: Sequence[ElementRange], encoding: Encoding, *, encoded: bool) -> Iterator[_Flight]:
        """Yield finished chunks; where the lane allows it, the next one is computed meanwhile."""
        ahead: _Flight | None = None
        for chunk in chunks:
            flight = self._launched(chunk, encoding, encoded=encoded)
            if ahead is not None:
                yield self._landed(ahead)
            if self._lane.runs_ahead:
                ahead = flight
            else:
                yield self._landed(flight)
        if ahead is not None:
            yield self._landed(ahead)

    def _launched(
        self, elements: ElementRange, encoding: Encoding, *, encoded: bool, buffer: Tensor | None = None
    ) -> _Flight:
        """Queue a chunk: local - global plus earlier rounding errors, scaled, and encoded if requested.

        ``buffer``: float32 memory on the weights' device for the values.
        """
        first, lane, rounds = self._positions.of(elements), self._lane, encoding not in EXACT
        index = int(np.searchsorted(self._ends, first, side="right"))
        piece = self._base.pieces[index]
        begin = first - (int(self._ends[index - 1]) if index else 0)
        start = self._base.of(index)[piece.sends[0] + begin :][: elements.size]
        with lane.beside(), torch.no_grad():
            local = _sent(piece)[begin : begin + elements.size]
            values = torch.sub(local.to(lane.device, torch.float32), lane.load("start", start), out=buffer)
            if rounds and self._residuals.upload:
                before = lane.host("before", elements.size)
                self._residuals.read(first, before.numpy())
                values += lane.load("before", before)
            bounds = lane.fetch("bounds", torch.stack(values.aminmax()))
            if self.scale != 1.0:
                values *= self.scale
            errors: Tensor | None = None
            if encoded:
                made = quantise(values, encoding)
                result = lane.fetch("payload", made.payload)
                errors = lane.fetch("errors", values - made.received) if rounds else None
            else:
                result = lane.fetch("values", values)
            return _Flight(elements, first, piece.span.spec.name, bounds, result, errors, lane.mark())

    def _landed(self, flight: _Flight) -> _Flight:
        """Wait for a chunk, check it, and set the rounding errors after it."""
        flight.wait()
        least, most = flight.bounds.tolist()
        if not (-self._max_abs <= least and most <= self._max_abs):  # NaN is neither
            raise UpdateError(
                f"local - global of tensor {flight.tensor!r} has a value that is not finite or beyond "
                f"{self._max_abs:g}: lower the learning rate, or let the job take more (aggregation.max_abs)"
            )
        if flight.errors is not None:
            self._residuals.put(flight.first, flight.errors.numpy())
        return flight


def _sent(piece: Piece) -> Tensor:
    """Return what this rank sends of a piece, flat, sharing its memory."""
    return piece.local.reshape(-1)[slice(*piece.sends)]
