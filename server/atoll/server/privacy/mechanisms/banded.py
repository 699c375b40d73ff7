"""Banded matrix factorisation with a Toeplitz matrix (Choquette-Choo et al. 2023, "(Amplified) Banded ...").

Releases are numbered from 0. Release t adds the noise ``n_t``, with ``sum over j of c_j n_(t - j) = z_t``. Here z is
independent discrete Gaussian noise, and c_0, c_1, ... are the first ``bands`` coefficients of the square root of the
matrix of prefix sums (``sensitivity.banded_coefficients``; Fichtenberger et al. 2023, Section 3). The prefix sums of n
have far less noise than with independent noise of the same privacy.

Noise is integer and exact: ``n_t = z_t - round(sum over j >= 1 of c_j n_(t - j))``, where each c_j is a multiple of
2**-20. ``allowance`` accounts for the rounding. A release needs the last ``bands - 1`` noise vectors, 8 bytes per
element each. They are kept encrypted under the names ``noise-0`` to ``noise-(bands - 2)`` in turn; the state holds
their keys.
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
from atoll.server.privacy.mechanisms.sensitivity import banded_allowance, banded_coefficients
from atoll.server.privacy.noise import DiscreteGaussian

if TYPE_CHECKING:
    from atoll.server.aggregation.next_model import Readable

LARGEST_SIGMA = 2.0**48
"""Samples of 16 sigma plus the contribution of correlation stay far below the limit up to which the loops are exact."""
MAX_BANDS = 1000


@dataclass(frozen=True, slots=True)
class Banded(Mechanism):
    """``sigma`` is the standard deviation of z.

    Attributes:
        bands: 1, which is independent noise, to 1000; at most the minimum separation.

    Raises:
        ValueError: for another number of bands.
    """

    bands: int

    @property
    def name(self) -> str:
        """See ``Mechanism``."""
        return "banded"

    def __post_init__(self) -> None:
        if not 1 <= self.bands <= MAX_BANDS:
            raise ValueError(f"{self.bands} bands: 1 to {MAX_BANDS}")

    @property
    def needs(self) -> tuple[str, ...]:
        """See ``Mechanism``."""
        return tuple(f"noise-{place}" for place in range(self.bands - 1))

    @property
    def most_kept_values(self) -> int:
        """See ``Mechanism``: the noise of the last ``bands - 1`` releases, and of the one that is being made."""
        return self.bands if self.bands > 1 else 0

    def round(
        self, state: NoiseState, version: int, binding: bytes, sigma: float, history: Mapping[str, Readable]
    ) -> Correlated:
        """See ``Mechanism``."""
        self._check(state, version, sigma)
        factors = [round(one * (1 << _loops.COEFFICIENT_BITS)) for one in banded_coefficients(self.bands)]
        earlier = []
        for back, name in enumerate(self._names(version), 1):
            if name not in history:
                raise NoiseStateError(f"{name}, noise that release {version} needs, was not kept")
            earlier.append(_Earlier(history[name], state.kept[name].key, factors[back]))
        key, seal = (derived(state.secret, purpose, version, binding) for purpose in ("round", "seal"))
        return Correlated(DiscreteGaussian(sigma), key, seal, tuple(earlier), self._name(version))

    def advance(self, state: NoiseState, version: int, binding: bytes, sigma: float, fresh: bytes) -> NoiseState:
        """See ``Mechanism``."""
        self._check(state, version, sigma)
        kept = dict(state.kept)
        if name := self._name(version):
            kept[name] = KeptKey(derived(state.secret, "seal", version, binding), sigma)
        return state.advanced(fresh, kept)

    def allowance(self, dimension: int) -> float:
        """See ``Mechanism``."""
        return banded_allowance(dimension, self.bands)

    def _name(self, version: int) -> str | None:
        """The name under which the noise of this release is kept."""
        return f"noise-{version % (self.bands - 1)}" if self.bands > 1 else None

    def _names(self, version: int) -> list[str]:
        """The names under which the needed noise of earlier releases is kept, the latest first."""
        numbers = range(version - 1, max(-1, version - self.bands), -1)
        return [f"noise-{number % (self.bands - 1)}" for number in numbers]

    def _check(self, state: NoiseState, version: int, sigma: float) -> None:
        state.check(self.name, version)
        if set(state.kept) != set(self._names(version)):
            raise NoiseStateError(
                f"release {version} of {self.bands} bands needs {sorted(self._names(version))}, stored are keys of "
                f"{sorted(state.kept)}"
            )
        if sigma > LARGEST_SIGMA:
            raise ValueError(f"sigma {sigma:g}: banded noise is exact up to 2**48 grid units")
        check_kept(state, sigma)


@dataclass(frozen=True, slots=True)
class _Earlier:
    """Kept noise, the key that seals it, and its coefficient in units of 2**-20."""

    stored: Readable
    key: bytes = field(repr=False)
    factor: int

    def block(self, start: int, stop: int) -> Integers:
        if stop * NOISE_BYTES > self.stored.size_bytes:
            raise NoiseStateError(f"kept noise has {self.stored.size_bytes} bytes, needed are {stop * NOISE_BYTES}")
        stored = np.frombuffer(self.stored.read(start * NOISE_BYTES, stop * NOISE_BYTES), "<i8")
        return sealed(self.key, stored, start)


@dataclass(frozen=True, slots=True)
class Correlated:
    """The noise of one release: independent noise less the contribution of earlier noise."""

    noise: DiscreteGaussian
    key: bytes = field(repr=False)
    seal_key: bytes = field(repr=False)
    earlier: tuple[_Earlier, ...]
    keeps: str | None

    @property
    def kept_values(self) -> int:
        """See ``RoundNoise``."""
        return 0 if self.keeps is None else 1

    def block(self, start: int, stop: int) -> Integers:
        """See ``RoundNoise``; holds 40 bytes per element, for any number of bands."""
        out = np.empty(stop - start, np.int64)
        self.noise.draw(out, self.key, start)
        if self.earlier:
            add_scaled, subtract = _compiled()
            high, low = np.zeros_like(out), np.zeros_like(out)
            for one in self.earlier:
                add_scaled(high, low, one.factor, one.block(start, stop))
            subtract(out, high, low)
        return out

    def seal(self, block: Integers, start: int) -> Integers:
        """See ``RoundNoise``."""
        if self.keeps is None:
            raise NoiseStateError(f"{block.size} elements from {start}: this noise is not kept")
        return sealed(self.seal_key, block, start)


@cache
def _compiled() -> tuple[_loops.AddScaled, _loops.Subtract]:
    from atoll.server.aggregation import _jit  # noqa: PLC0415 - numba: the command line imports this too

    whole, part = _jit.array_type(np.int64, writable=True), _jit.array_type(np.int64)
    return (
        _jit.compiled(_loops.add_scaled, (whole, whole, _jit.scalar_type(np.int64), part)),
        _jit.compiled(_loops.subtract, (whole, whole, whole)),
    )
