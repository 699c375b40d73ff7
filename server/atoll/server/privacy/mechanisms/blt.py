"""Buffered linear Toeplitz noise (BLT; Dvijotham et al. 2024, arXiv:2404.16706, Algorithm 1).

Releases are numbered from 0. Release t adds ``n_t = z_t - round(sum over buffers of scale * s_t)``. Here z is
independent discrete Gaussian noise, and each buffer s begins with 0 and follows ``s_(t + 1) = round(decay * s_t) +
n_t``. Except for rounding this is ``C n = z`` with the matrix C of ``strategy.Strategy``. The prefix sums of n have far
less noise than with independent noise of the same privacy.

All arithmetic is on integers and exact. n is in grid units, and buffers are in units of ``2**-fraction_bits`` grid
units. n_t depends only on z_t and on n_0 to n_(t - 1). So, given the earlier releases, a release is a sum with fresh
discrete Gaussian noise. A contribution shifts the centre of that noise by the contribution times C, plus or minus the
effect of rounding (``allowance``).

The buffers are kept encrypted as ``buffers``, with 8 bytes for each element and buffer; the buffers of one element are
adjacent. The state holds their key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from atoll.server.privacy.mechanisms import _loops
from atoll.server.privacy.mechanisms.interface import (
    NOISE_BYTES,
    Integers,
    KeptKey,
    Mechanism,
    NoiseState,
    NoiseStateError,
    check_kept,
)
from atoll.server.privacy.mechanisms.keys import derived
from atoll.server.privacy.mechanisms.sealing import sealed
from atoll.server.privacy.mechanisms.sensitivity import blt_allowance
from atoll.server.privacy.mechanisms.strategy import Strategy
from atoll.server.privacy.noise import DiscreteGaussian

if TYPE_CHECKING:
    from atoll.server.aggregation.next_model import Readable

KEPT = "buffers"
LARGEST_SIGMA = 2.0**48
"""Samples are at most 16 times as large; ``Strategy.fraction_bits`` then keeps buffers below 2**62 units."""


@dataclass(frozen=True, slots=True)
class Blt(Mechanism):
    """``sigma`` is the standard deviation of z.

    Attributes:
        strategy: the matrix.
        rounds: the run's train rounds; a later release is refused, as its buffers might overflow.
    """

    strategy: Strategy
    rounds: int

    @property
    def name(self) -> str:
        """See ``Mechanism``."""
        return "blt"

    @property
    def needs(self) -> tuple[str, ...]:
        """See ``Mechanism``."""
        return (KEPT,)

    @property
    def most_kept_values(self) -> int:
        """See ``Mechanism``: the buffers before and after a release."""
        return 2 * self.strategy.buffers

    def round(
        self, state: NoiseState, version: int, binding: bytes, sigma: float, history: Mapping[str, Readable]
    ) -> Buffered:
        """See ``Mechanism``."""
        self._check(state, version, sigma)
        kept = None
        if version:
            if KEPT not in history:
                raise NoiseStateError(f"{KEPT}, which release {version} needs, was not kept")
            kept = _Kept(history[KEPT], state.kept[KEPT].key, self.strategy.buffers)
        key, seal = (derived(state.secret, purpose, version, binding) for purpose in ("round", "seal"))
        return Buffered(self.strategy, DiscreteGaussian(sigma), key, seal, kept)

    def advance(self, state: NoiseState, version: int, binding: bytes, sigma: float, fresh: bytes) -> NoiseState:
        """See ``Mechanism``."""
        self._check(state, version, sigma)
        return state.advanced(fresh, {KEPT: KeptKey(derived(state.secret, "seal", version, binding), sigma)})

    def allowance(self, dimension: int) -> float:
        """See ``Mechanism``."""
        return blt_allowance(dimension, self.strategy, self.rounds)

    def _check(self, state: NoiseState, version: int, sigma: float) -> None:
        state.check(self.name, version)
        expected = {KEPT} if version else set()
        if set(state.kept) != expected:
            raise NoiseStateError(
                f"release {version} needs {sorted(expected)}, stored are keys of {sorted(state.kept)}"
            )
        if version >= self.rounds:
            raise ValueError(f"release {version}: these buffers are exact for {self.rounds} rounds, from 0")
        if sigma > LARGEST_SIGMA:
            raise ValueError(f"sigma {sigma:g}: BLT noise is exact up to 2**48 grid units")
        check_kept(state, sigma)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Kept buffers, the key that seals them, and their number per element."""

    stored: Readable
    key: bytes = field(repr=False)
    buffers: int

    def block(self, start: int, stop: int) -> Integers:
        """A copy of the buffers of elements [start, stop): int64 of shape (elements * buffers,)."""
        width = self.buffers * NOISE_BYTES
        if stop * width > self.stored.size_bytes:
            raise NoiseStateError(f"kept buffers have {self.stored.size_bytes} bytes, needed are {stop * width}")
        stored = np.frombuffer(self.stored.read(start * width, stop * width), "<i8")
        return sealed(self.key, stored, start * self.buffers)


@dataclass(frozen=True, slots=True)
class Buffered:
    """The noise of one release: independent noise less the buffers' contribution."""

    strategy: Strategy
    noise: DiscreteGaussian
    key: bytes = field(repr=False)
    seal_key: bytes = field(repr=False)
    kept: _Kept | None

    @property
    def keeps(self) -> str:
        """See ``RoundNoise``."""
        return KEPT

    @property
    def kept_values(self) -> int:
        """See ``RoundNoise``."""
        return self.strategy.buffers

    def block(self, start: int, stop: int) -> Integers:
        """See ``RoundNoise``."""
        out = np.empty(stop - start, np.int64)
        self.noise.draw(out, self.key, start)
        if self.kept is not None:
            subtract, _ = _compiled()
            subtract(out, self.kept.block(start, stop), self.strategy.scale_units, self.strategy.fraction_bits)
        return out

    def seal(self, block: Integers, start: int) -> Integers:
        """See ``RoundNoise``."""
        count = self.strategy.buffers
        if self.kept is None:
            buffers = np.zeros(block.size * count, np.int64)
        else:
            buffers = self.kept.block(start, start + block.size)
        _, push = _compiled()
        push(block, buffers, self.strategy.decay_units, self.strategy.fraction_bits)
        return sealed(self.seal_key, buffers, start * count)


@cache
def _compiled() -> tuple[_loops.SubtractBuffers, _loops.Push]:
    from atoll.server.aggregation import _jit  # noqa: PLC0415 - numba: the command line imports this too

    whole, part = _jit.array_type(np.int64, writable=True), _jit.array_type(np.int64)
    bits = _jit.scalar_type(np.int64)
    return (
        _jit.compiled(_loops.subtract_buffers, (whole, part, part, bits)),
        _jit.compiled(_loops.push, (part, whole, part, bits)),
    )
