"""The sums of one process: each update is added to its round's integer sum as soon as it exists."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from atoll.client.in_process import Pieces
from atoll.server.aggregation import Accumulator
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.simulation.errors import SimulationError
from atoll.wire.chunks import ChunkHeader

Attempt = tuple[str, int, int]
"""Run, round and attempt."""


class UpdateSums:
    """One sum for each open round, and the updates that a later round may take."""

    def __init__(self) -> None:
        self._sums: dict[Attempt, Accumulator] = {}
        self._kept: dict[tuple[str, int, int, str], tuple[Pieces, float]] = {}
        self._spare: Accumulator | None = None

    def keep(self, key: Attempt, participant: str, pieces: Pieces, norm: float) -> None:
        """Hold an update that the coordinator may ask for in this round's sum or a later one's."""
        pieces.hold()
        self._kept[*key, participant] = pieces, norm

    def fold(self, key: SumKey, update_id: str, weight: int, pieces: Pieces, norm: float) -> None:
        """Add an update to a sum.

        Raises:
            RejectedUpdateError: if the sum's grid does not allow it.
        """
        self._sum(key).fold(update_id, weight, _Buffers(pieces), norm if key.grid.clip else 0.0, again=True)

    def partial(self, key: SumKey, items: Sequence[FoldItem]) -> Accumulator:
        """The sum of exactly these updates.

        Raises:
            SimulationError: if the sum contains another update, or one of these is neither in it nor kept.
        """
        wanted = {item.update_id for item in items}
        found = self._sum(key)
        if found.updates - wanted:
            found.reset(key.grid, key.first, key.elements)
        for item in items:
            if item.update_id not in found.updates:
                kept = self._kept.get((item.run, item.round, item.attempt, item.participant))
                if kept is None:
                    raise SimulationError(f"update {item.update_id} is no longer here to be summed")
                self.fold(key, item.update_id, item.weight, *kept)
        return found

    def drop(self, run: str, unwanted: Callable[[tuple[int, int]], bool]) -> None:
        """Forget the sums of these attempts of a run; their memory is reused."""
        for key in [key for key in self._sums if key[0] == run and unwanted(key[1:])]:
            self._spare = self._sums.pop(key)

    def forget(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """Forget the kept updates of these rounds, except those of the given (round, attempt, participant)."""
        self._kept = {
            upload: one
            for upload, one in self._kept.items()
            if upload[0] != run or upload[1:3] > through or upload[1:] in keep
        }

    def _sum(self, key: SumKey) -> Accumulator:
        attempt = (key.run, key.round, key.attempt)
        found = self._sums.get(attempt)
        if found is None:
            spare, self._spare = self._spare, None
            if spare is not None and key.elements <= spare.capacity <= 2 * key.elements:
                spare.reset(key.grid, key.first, key.elements)
                found = spare
            else:
                found = Accumulator(key.elements, key.grid, key.first)
            self._sums[attempt] = found
        return found


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Chunks in the form that an accumulator takes."""

    pieces: Pieces

    def __iter__(self) -> Iterator[tuple[ChunkHeader, memoryview]]:
        return ((header, payload.data) for header, payload in self.pieces)
