"""A run's private releases in this process: clipped, summed, noised and released by the parts that the daemon uses.

No participants, no transport, no database: updates come as arrays. What is charged for a release is the contract's to
say (``Contract.cost``), as in a real run.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from atoll.server.aggregation import (
    DEFAULT_MAX_ABS,
    Accumulator,
    NewModel,
    OldModel,
    ServerOptimiser,
    inspect,
    release_model,
)
from atoll.server.aggregation.noised import EmptySum, NoisedSum
from atoll.server.aggregation.optimisers import FedAvg
from atoll.server.privacy.mechanisms import RoundNoise, mechanism_named, new_secret
from atoll.server.privacy.scale import private_grid, sensitivity
from atoll.wire.chunks import ChunkHeader, ElementRange
from atoll.wire.digest import DIGEST_BYTES
from atoll.wire.encoding import Encoding

if TYPE_CHECKING:
    from atoll.server.aggregation.noised import Noise
    from atoll.server.privacy.contract import Contract
    from atoll.wire.layout import Layout

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
_ANY_DIGEST = bytes(DIGEST_BYTES)  # payloads are digested where they arrive, before they are folded


@dataclass(frozen=True, slots=True)
class Safeguards:
    """What is on. An audit switches one off, to see that it is missed.

    Attributes:
        noise: share of the contract's noise that is drawn, from 0 to 1.
        clipping: whether updates are clipped.
    """

    noise: float = 1.0
    clipping: bool = True


class Rehearsal:
    """One run, round after round.

    Args:
        contract: which noise, how much of it, and the clip.
        layout: of the model, all float32.
        model: its first weights, (N,).
        most: members of one round, at most.
        optimiser: what the mean does to the weights.
        max_abs: largest admissible magnitude of an update's value, a power of two.
        safeguards: what is on.

    Raises:
        GridError: if noise and sum do not fit the grid.
    """

    def __init__(
        self,
        contract: Contract,
        layout: Layout,
        model: Floats,
        *,
        most: int,
        optimiser: ServerOptimiser | None = None,
        max_abs: float = DEFAULT_MAX_ABS,
        safeguards: Safeguards | None = None,
    ) -> None:
        self.contract, self.layout = contract, layout
        self.model = np.array(model, np.float32)
        self.version = 0
        on = safeguards or Safeguards()
        self._optimiser = optimiser or FedAvg()
        self._optimiser_state: dict[str, bytes] = {}
        grid = private_grid(
            max(1, most) * contract.weight_bound,
            max_abs,
            contract.clip,
            max(1.0, contract.noise_multiplier) * contract.weight_bound,
        )
        self._accumulator = Accumulator(layout.size, grid if on.clipping else replace(grid, clip=0.0))
        self._mechanism = mechanism_named(contract.mechanism, contract.bands)
        moved = contract.weight_bound * sensitivity(grid, layout.size) + self._mechanism.allowance(layout.size)
        self._sigma = on.noise * contract.noise_multiplier * moved
        self._state = self._mechanism.begin(new_secret())
        self._kept: dict[str, _Kept] = {}

    def release(self, updates: Iterable[Floats], weight: int | None = None) -> None:
        """Fold a round's updates, (N,) each, and replace the model by what their noised sum makes of it.

        Each has the contract's largest weight, or ``weight``, in weight units.

        Raises:
            AggregationError: for an update that a round would refuse.
        """
        binding, grid = blake3(), self._accumulator.grid
        self._accumulator.reset(grid)
        for number, update in enumerate(updates):
            norm = math.sqrt(inspect(update.data, Encoding.FLOAT32).sum_squares)
            header = ChunkHeader(ElementRange.run(0, update.size), Encoding.FLOAT32, _ANY_DIGEST)
            units = grid.weight_of(self.contract.weight_bound if weight is None else weight)
            self._accumulator.fold(str(number), units, [(header, update.data.cast("B"))], norm)
            binding.update(update.data.cast("B"))
        self._release(binding.digest())
        self.version += 1

    def _release(self, binding: bytes) -> None:
        total = self._accumulator if self._accumulator.updates else EmptySum(self.layout.size, self._accumulator.grid)
        made = self._noise(binding)
        model, state = io.BytesIO(), {name: io.BytesIO() for name in self._optimiser.state_names}
        old = OldModel(self.model.tobytes(), self._optimiser_state)
        with made, NoisedSum(total, made.noise, self.contract.divisor_weight, made.keep) as noised:
            release_model(self.layout, noised, self._optimiser, old, NewModel(model, state))
        self.model = np.frombuffer(model.getvalue(), np.float32)
        self._optimiser_state = {name: one.getvalue() for name, one in state.items()}
        if self._sigma:
            self._state = self._mechanism.advance(self._state, self.version, binding, self._sigma)

    def _noise(self, binding: bytes) -> _Made:
        if not self._sigma:
            return _Made(_Silence(), None, self._kept)
        noise = self._mechanism.round(self._state, self.version, binding, self._sigma, self._kept)
        return _Made(noise, noise if noise.keeps else None, self._kept)


class _Made:
    """A round's noise, which is kept for later rounds when the ``with`` block is left, if they need it."""

    def __init__(self, noise: Noise, sealing: RoundNoise | None, kept: dict[str, _Kept]) -> None:
        self.noise = noise
        self._sealing, self._kept = sealing, kept
        self._pieces: list[Integers] = []
        self._at = 0

    def keep(self, piece: Integers) -> None:
        """Takes the noise piece by piece, in order."""
        if self._sealing is not None:
            self._pieces.append(self._sealing.seal(piece, self._at))
            self._at += piece.size

    def __enter__(self) -> _Made:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._sealing is not None and self._sealing.keeps:
            self._kept[self._sealing.keeps] = _Kept(np.concatenate(self._pieces).tobytes())


@dataclass(frozen=True, slots=True)
class _Kept:
    """Sealed noise; an ``atoll.server.aggregation.release.Readable``."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int, /) -> memoryview:
        return memoryview(self.data)[start:stop]


class _Silence:
    """No noise at all."""

    def block(self, start: int, stop: int, /) -> Integers:
        return np.zeros(stop - start, np.int64)
