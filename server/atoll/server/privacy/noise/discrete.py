"""Discrete Gaussian noise from a key: fast, exact to 2**-128, the same for any division into blocks on any machine.

The definition is ``settling.settle``, in integers. Here compiled loops decide every sample that they can decide with
certainty: a guide table gives the block for 97 % of uniforms, and a coin below 1 - t needs no exponential (``first``);
most of the others are decided by the full thresholds and an exponential with a margin far above its error (``second``).
If highest words tie or a coin falls into the margin (4 in a million), the definition decides, so rounding never affects
a sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from atoll.server.privacy.noise.keystream import RUN, Keystream, Words, check_key, scattered
from atoll.server.privacy.noise.settling import MAX_ATTEMPTS, STREAMS, NoiseExhaustedError, settle
from atoll.server.privacy.noise.tables import AGAIN, UNCLEAR, Tables, tables_of

if TYPE_CHECKING:
    from atoll.server.privacy.noise import _loops

STATISTICAL_DISTANCE = 2.0**-128
"""Bound on one sample's statistical distance from the distribution, for a truly random keystream.

Beyond 16 sigma lies less than 2**-183; thresholds out of 2**192 err by less than 2**-180 together, the coin's by
2**-146 for each attempt, of which there are 1.05 on average. docs/privacy/noise.md adds it up. A mechanism that draws n
samples loses ``(1 + exp(epsilon)) * n * 2**-128`` of delta: below 1e-22 for 1e9 parameters, 1e4 rounds and epsilon 8.
"""

SMOOTHING = 2.0
"""Units of the grid: see ``sigma_for``."""
_STRETCH = 1 << 17
"""Number of elements after which open elements are settled; bounds the memory for them."""

Integers = npt.NDArray[np.int64]


def sigma_for(continuous: float) -> float:
    """The sigma whose discrete noise costs no more than continuous noise of standard deviation ``continuous``.

    Take x from a continuous Gaussian around an integer c, with standard deviation s, then y from the discrete Gaussian
    of sigma 2 around x. Then P(y) is that of a discrete Gaussian of sigma sqrt(s**2 + 4) around c, to a factor of
    1 +- 2 exp(-8 pi**2), which is 1 +- 1e-34 (Peikert 2010, theorem 3.1; for the sum of exp(-(k - x)**2 / 8) over
    integers k hardly depends on x). So the latter is post-processing of the continuous mechanism, which has no cost
    except an epsilon of 4e-34 for each element and release.
    """
    return math.hypot(continuous, SMOOTHING)


@dataclass(frozen=True)
class DiscreteGaussian:
    """P(x) proportional to ``exp(-x**2 / (2 sigma**2))`` over the integers (Canonne, Kamath, Steinke 2020, Def. 1).

    Attributes:
        sigma: 2**-4 to 2**50. The standard deviation is always below it and, for values from 1, equals it to a relative
            1e-6.

    Raises:
        ValueError: for another sigma.
    """

    sigma: float
    _tables: Tables = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tables", tables_of(float(self.sigma)))

    @property
    def low_bits(self) -> int:
        """Number of a sample's lowest bits that are (nearly) uniform."""
        return self._tables.low_bits

    def draw(self, out: Integers, key: bytes, start: int = 0) -> None:
        """Write the samples of elements [start, start + n) to ``out``.

        The sample of an element depends only on key, sigma and the element's number. Samples of different elements or
        keys are independent. Runs without the GIL, in any number of threads.

        Args:
            out: int64 of shape (n,), contiguous and writable.
            key: 32 secret bytes, for this noise only.
            start: number of the first element, from 0.

        Raises:
            ValueError: if the key or start is invalid, or the elements pass 2**63.
        """
        check_key(key)
        if not 0 <= start <= (1 << 63) - out.size:
            raise ValueError(f"elements {start} to {start + out.size}: they are numbered from 0 to 2**63")
        run = Keystream(key, start)
        for at in range(0, out.size, _STRETCH):
            self._stretch(out[at : at + _STRETCH], key, start + at, run)

    def _stretch(self, out: Integers, key: bytes, start: int, run: Keystream) -> None:
        tables, loops = self._tables, compiled_loops()
        shape = (tables.low_bits, tables.zero_is_fine)
        unsure = np.empty(RUN, np.uint8)
        places, words = [], []
        for at in range(0, out.size, RUN):
            part = out[at : at + RUN]
            bits = run.next(part.size)
            count = loops.first(bits, tables.guide, shape, tables.slopes, part, unsure[: part.size])
            where, kept = np.empty(count, np.int64), np.empty(2 * count, np.uint64)
            loops.gather(bits, unsure[: part.size], at, where, kept)
            places.append(where)
            words.append(kept)
        if places:
            self._settle(out, key, start, np.concatenate(places), np.concatenate(words))

    def _settle(self, out: Integers, key: bytes, start: int, where: Integers, words: Words) -> None:
        """Decide the elements of a stretch at ``where``, whose first attempts' bits are ``words``."""
        tables, loops = self._tables, compiled_loops()
        shape = (tables.low_bits, tables.zero_is_fine)
        for attempt in range(MAX_ATTEMPTS):
            values, states = np.empty(where.size, np.int64), np.empty(where.size, np.uint8)
            loops.second(words, tables.words, shape, tables.slopes, values, states)
            out[where] = values
            for at in where[states == UNCLEAR].tolist():
                out[at] = settle(tables, key, start + at)
            where = where[states == AGAIN]
            if not where.size:
                return
            words = scattered(key, STREAMS * (attempt + 1), where + start)
        raise NoiseExhaustedError(start + int(where[0]))


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The loops, compiled at their first use, since importing numba takes a third of a second.

    ``first`` decides most elements, 16,384 at a time; ``gather`` collects the open ones; ``second`` decides most of
    these.
    """

    first: _loops.First
    gather: _loops.Gather
    second: _loops.Second


@cache
def compiled_loops() -> _Compiled:
    """The loops, compiled at the first call."""
    from atoll.server.aggregation import _jit  # noqa: PLC0415 - numba: the command line imports this too
    from atoll.server.privacy.noise import _loops  # noqa: PLC0415

    words, new_words = _jit.array_type(np.uint64), _jit.array_type(np.uint64, writable=True)
    integers, octets = _jit.array_type(np.int64, writable=True), _jit.array_type(np.uint8, writable=True)
    shape, slopes = _jit.tuple_type(np.int64, 2), _jit.tuple_type(np.float64, 2)
    return _Compiled(
        _jit.compiled(_loops.first, (words, _jit.array_type(np.uint8), shape, slopes, integers, octets)),
        _jit.compiled(_loops.gather, (words, octets, _jit.scalar_type(np.int64), integers, new_words)),
        _jit.compiled(_loops.second, (words, words, shape, slopes, integers, octets)),
    )


def warm() -> None:
    """Compile the loops now (4 s, once per machine), so that no round waits for it."""
    compiled_loops()
