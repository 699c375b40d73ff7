"""Plays a run's private releases in this process: the daemon's own parts clip, sum, add noise and release.

There are no participants, transport or database; updates are arrays. The contract gives the cost of a release
(``Contract.cost``), as in a real run.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
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
    write_next_model,
)
from atoll.server.aggregation.noised import EmptySum, NoisedSum
from atoll.server.aggregation.optimisers import FedAvg
from atoll.server.privacy.mechanisms import RoundNoise
from atoll.server.privacy.run import PrivateRun, Summed
from atoll.wire.chunks import ChunkHeader, ElementRange
from atoll.wire.digest import DIGEST_BYTES
from atoll.wire.encoding import Encoding

if TYPE_CHECKING:
    from atoll.server.privacy.contract import Contract
    from atoll.wire.layout import Layout

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
PLAIN_MEAN = """
[aggregation]
weighting = "uniform"
[evaluation]
before_training = false
final = false
every = 0
"""
"""Part of a job file: all updates weigh the same, and no round evaluates."""
_ANY_DIGEST = bytes(DIGEST_BYTES)  # in a server, payloads are digested on arrival, before they are folded


@dataclass(frozen=True, slots=True)
class Safeguards:
    """The safeguards of a rehearsal. With one switched off, an audit must fail.

    Attributes:
        noise: share of the contract's noise that is drawn, from 0 to 1.
        clipping: whether updates are clipped.
    """

    noise: float = 1.0
    clipping: bool = True


class Rehearsal:
    """One run, round after round.

    Args:
        contract: gives mechanism, noise and clip norm.
        layout: the model's layout, all float32.
        model: initial weights, (N,).
        most: maximum number of members of a round.
        optimiser: the server optimiser.
        max_abs: largest admissible magnitude of an update's value, a power of two.
        safeguards: which safeguards are on.

    Raises:
        GridError: if noise and sum do not fit in the grid.
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
        on = safeguards or Safeguards()
        self._optimiser = optimiser or FedAvg()
        self._optimiser_state: dict[str, bytes] = {}
        grid = PrivateRun.begin(contract, math.inf).grid(most * contract.weight_bound, max_abs)
        self._grid = grid if on.clipping else replace(grid, clip=0.0)
        self._noised_on = grid
        self._accumulator = Accumulator(layout.size, self._grid)
        drawn = replace(contract, noise_multiplier=on.noise * contract.noise_multiplier)
        self._run = PrivateRun.begin(drawn, math.inf)
        self._kept: dict[str, _Kept] = {}

    def release(self, updates: Iterable[Floats]) -> None:
        """Fold a round's updates, (N,) each, and update the model with their noised sum.

        Each has the contract's largest weight.

        Raises:
            AggregationError: for an update that a round would refuse.
        """
        norms, binding = [], blake3()
        self._accumulator.reset(self._grid)
        weight = self._grid.weight_of(self.contract.weight_bound)
        for number, update in enumerate(updates):
            norms.append(math.sqrt(inspect(update.data, Encoding.FLOAT32).sum_squares))
            header = ChunkHeader(ElementRange.run(0, update.size), Encoding.FLOAT32, _ANY_DIGEST)
            self._accumulator.fold(str(number), weight, [(header, update.data.cast("B"))], norms[-1])
            binding.update(update.data.cast("B"))
        self._release(Summed(self._noised_on, self.layout.size, binding.digest(), norms))

    def _release(self, summed: Summed) -> None:
        total = self._accumulator if self._accumulator.updates else EmptySum(self.layout.size, self._grid)
        model, state = io.BytesIO(), {name: io.BytesIO() for name in self._optimiser.state_names}
        old = OldModel(self.model.tobytes(), self._optimiser_state)
        silent = not self._run.contract.noise_multiplier
        noise = _Silence() if silent else self._run.noise(summed, self._kept)
        keeping = _Keeping(noise)
        with NoisedSum(total, noise, self.contract.divisor_weight, keeping.keep) as noised:
            write_next_model(self.layout, noised, self._optimiser, old, NewModel(model, state))
        self.model = np.frombuffer(model.getvalue(), np.float32)
        self._optimiser_state = {name: one.getvalue() for name, one in state.items()}
        if not silent:
            self._run = self._run.after_release(summed)
        if noise.keeps:
            self._kept[noise.keeps] = keeping.sealed()


class _Keeping:
    """Noise that later rounds need, encrypted piece by piece as it is drawn."""

    def __init__(self, noise: RoundNoise) -> None:
        self._noise = noise
        self._pieces: list[Integers] = []

    def keep(self, piece: Integers, start: int) -> None:
        """Take the noise in order."""
        if self._noise.keeps:
            self._pieces.append(self._noise.seal(piece, start))

    def sealed(self) -> _Kept:
        return _Kept(np.concatenate(self._pieces).tobytes())


@dataclass(frozen=True, slots=True)
class _Kept:
    """Encrypted noise; an ``atoll.server.aggregation.next_model.Readable``."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int, /) -> memoryview:
        return memoryview(self.data)[start:stop]


class _Silence(RoundNoise):
    """No noise at all."""

    def block(self, start: int, stop: int) -> Integers:
        return np.zeros(stop - start, np.int64)
