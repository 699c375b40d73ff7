"""Parameters of a buffered linear Toeplitz matrix (BLT; Dvijotham et al. 2024, arXiv:2404.16706), and its series.

C has ones on the diagonal. Its i-th subdiagonal has ``c_i = sum over buffers of scale * decay**(i - 1)``, which is
positive and decreases with i. Noise ``C**-1 z`` needs one state vector for each buffer, for any number of rounds.

``C**-1`` has the same form: its i-th subdiagonal has ``-r^T M**(i - 1) r``, with ``r = sqrt(scale)`` and the symmetric
matrix ``M = diag(decay) - r r^T``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atoll.server.privacy.mechanisms import _loops

PARAMETER_BITS = _loops.SPLIT_BITS
"""Decays and scales are multiples of 2**-24, so that their products with integers are exact."""
MAX_BUFFERS = 5
MAX_FRACTION_BITS = 10
"""With noise of 16 times 2**48, buffers that are no larger than the noise stay below 2**62 units of 2**-10."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Strategy:
    """One BLT and the precision of its buffers. It is computed when a run is submitted, and stored with the run.

    Attributes:
        decays: theta of each buffer: multiples of 2**-24 above 0 and below 1.
        scales: omega of each buffer: multiples of 2**-24 above 0, together at most 1.
        fraction_bits: buffers hold multiples of 2**-fraction_bits grid units; 1 to 10.

    Raises:
        ValueError: for other values.
    """

    decays: tuple[float, ...]
    scales: tuple[float, ...]
    fraction_bits: int

    def __post_init__(self) -> None:
        if len(self.decays) != len(self.scales) or not 1 <= len(self.decays) <= MAX_BUFFERS:
            raise ValueError(f"{len(self.decays)} decays, {len(self.scales)} scales: 1 to {MAX_BUFFERS} of each")
        if not all(0 < one < 1 and _is_multiple(one) for one in self.decays):
            raise ValueError(f"decays {self.decays}: multiples of 2**-24 above 0 and below 1")
        if not all(one > 0 and _is_multiple(one) for one in self.scales) or sum(self.scales) > 1:
            raise ValueError(f"scales {self.scales}: multiples of 2**-24 above 0, together at most 1")
        if not 1 <= self.fraction_bits <= MAX_FRACTION_BITS:
            raise ValueError(f"{self.fraction_bits} fraction bits: 1 to {MAX_FRACTION_BITS}")

    @property
    def buffers(self) -> int:
        """Number of state vectors."""
        return len(self.decays)

    @property
    def decay_units(self) -> npt.NDArray[np.int64]:
        """Decays in units of 2**-24."""
        return _units(self.decays)

    @property
    def scale_units(self) -> npt.NDArray[np.int64]:
        """Scales in units of 2**-24."""
        return _units(self.scales)

    def coefficients(self, count: int) -> Doubles:
        """The first column of C, ``count`` long."""
        return coefficients(np.array(self.decays), np.array(self.scales), count)

    def inverse(self, count: int) -> Doubles:
        """The first column of ``C**-1``, ``count`` long."""
        return inverse(np.array(self.decays), np.array(self.scales), count)

    @property
    def rounding(self) -> float:
        """Upper bound on the effect of rounding buffers on what is subtracted from one element's noise, in grid units.

        Each step rounds a buffer by at most half a unit of 2**-fraction_bits. The difference between two neighbouring
        runs is thus at most one unit, which decays with the buffer.
        """
        total = sum(scale / (1 - decay) for decay, scale in zip(self.decays, self.scales, strict=True))
        return float(total * 2.0**-self.fraction_bits)


def coefficients(decays: Doubles, scales: Doubles, count: int) -> Doubles:
    """The first column of C, ``count`` long."""
    return np.concatenate([np.ones(1), powers(decays, count - 1) @ scales])


def inverse(decays: Doubles, scales: Doubles, count: int) -> Doubles:
    """The first column of ``C**-1``, ``count`` long; see the module docstring."""
    eigenvalues, parts = spectrum(decays, scales)
    return np.concatenate([np.ones(1), -(powers(eigenvalues, count - 1) @ np.square(parts @ np.sqrt(scales)))])


def buffer_growth(decays: Doubles, scales: Doubles, count: int) -> float:
    """The largest magnitude of any buffer in ``count`` rounds, if each element of z is at most 1.

    The buffers before round t are ``sum over i of A**(t - 1 - i) 1 z_i``, with ``A = diag(decay) - 1 scale^T``. A
    is the matrix M of the module docstring in other coordinates.
    """
    eigenvalues, parts = spectrum(decays, scales)
    roots = np.sqrt(scales)
    weights = parts * (parts @ roots)[:, None] / roots  # of eigenvalue k in buffer j
    return float(np.max(np.sum(np.abs(powers(eigenvalues, count) @ weights), axis=0)))


def powers(bases: Doubles, count: int) -> Doubles:
    """Powers 0 to ``count - 1`` of each base, (count, bases)."""
    found: Doubles = np.power(bases[None, :], np.arange(count)[:, None])
    return found


def rounded(values: Sequence[float]) -> tuple[float, ...]:
    """Round down to multiples of 2**-24, but at least to 2**-24."""
    return tuple(max(1, int(one * (1 << PARAMETER_BITS))) / (1 << PARAMETER_BITS) for one in values)


def spectrum(decays: Doubles, scales: Doubles) -> tuple[Doubles, Doubles]:
    """Eigenvalues of M, and its eigenvectors as rows."""
    roots = np.sqrt(scales)
    eigenvalues, vectors = np.linalg.eigh(np.diag(decays) - np.outer(roots, roots))
    return eigenvalues, vectors.T


def _is_multiple(value: float) -> bool:
    return (value * (1 << PARAMETER_BITS)).is_integer()


def _units(values: tuple[float, ...]) -> npt.NDArray[np.int64]:
    return np.array([int(one * (1 << PARAMETER_BITS)) for one in values], np.int64)
