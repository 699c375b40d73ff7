"""The rate of drawing noise, on one core and on two, compared with numpy's standard normal in the same run.

numpy's generator is not cryptographic and its normal is rounded; it serves as the plain limit for a sampler. All write
2**17 elements at a time over the same megabyte, as a release does. The kept state of banded noise and BLT is in memory
and is sealed each time. Cases take turns, and the best of each counts. Target: 3 million samples/s on one core at every
sigma.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from atoll.server.aggregation.next_model import RELEASE_BLOCK
from atoll.server.privacy.mechanisms import Mechanism, RoundNoise, mechanism_named
from atoll.server.privacy.mechanisms.optimising import best_strategy
from atoll.server.privacy.noise import DiscreteGaussian, warm
from atoll.server.privacy.noise.keystream import RUN, Keystream
from benchmarks.figures import Figure
from benchmarks.options import Options

TARGET = 3.0
UNIT = "million/s"
PLAIN = "numpy standard_normal, float64"
SIGMAS = {"1": 1.0, "10": 10.0, "10^4": 1e4, "2^40": 2.0**40}
ROUNDS = 16
BANDS = 8
BUFFERS = 3
_KEY = bytes(range(32))
_THREADS = 2

Integers = npt.NDArray[np.int64]


def run(options: Options) -> list[Figure]:
    """The case for ``python -m benchmarks privacy-noise``."""
    elements, repeats = (RELEASE_BLOCK, 1) if options.smoke else (64 * RELEASE_BLOCK, 7)
    warm()
    rates = _rates(_cases(elements), elements, repeats)
    command, plain = options.command("privacy-noise"), rates[PLAIN]
    return [
        Figure.at_least(name, rate, UNIT, TARGET, command, beside=plain)
        if name.startswith("sigma")
        else Figure.stated(name, rate, UNIT, command, beside=plain)
        for name, rate in rates.items()
    ]


def _rates(cases: dict[str, Callable[[], object]], elements: int, repeats: int) -> dict[str, float]:
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(repeats):
        for name, case in cases.items():
            started = time.perf_counter()
            case()
            best[name] = min(best[name], time.perf_counter() - started)
    return {name: elements / seconds / 1e6 for name, seconds in best.items()}


def _cases(elements: int) -> dict[str, Callable[[], object]]:
    generator, out = np.random.default_rng(0), np.empty(RELEASE_BLOCK)
    cases: dict[str, Callable[[], object]] = {
        PLAIN: partial(_in_blocks, elements, lambda _: generator.standard_normal(out=out)),
        "keystream alone, 16 bytes for each": partial(_keystream, elements),
    }
    for name, sigma in SIGMAS.items():
        cases[f"sigma {name}"] = partial(_draw, DiscreteGaussian(sigma), 0, elements)
    cases["two threads, sigma 2^40"] = partial(_threads, DiscreteGaussian(2.0**40), elements)
    blt = mechanism_named("blt", strategy=best_strategy(1024, 1024, 1, BUFFERS), rounds=1024)
    for mechanism in (mechanism_named("tree"), mechanism_named("banded", BANDS), blt):
        noise = _late_round(mechanism)
        cases[f"{_name(mechanism)}, sigma 2^40"] = partial(_in_blocks, elements, partial(_block, noise))
    return cases


def _name(mechanism: Mechanism) -> str:
    """The label of the measured round: the tree's sixteenth round draws the most nodes."""
    if mechanism.name == "blt":
        return f"blt, {BUFFERS} buffers"
    kept = len(mechanism.needs)
    return f"{mechanism.name}, {kept + 1} bands" if kept else f"{mechanism.name}, round {ROUNDS} (5 draws)"


def _in_blocks(elements: int, make: Callable[[int], object]) -> None:
    for start in range(0, elements, RELEASE_BLOCK):
        make(start)


def _keystream(elements: int) -> None:
    run_of = Keystream(_KEY, 0)
    for _ in range(0, elements, RUN):
        run_of.next(RUN)


def _draw(noise: DiscreteGaussian, first: int, elements: int) -> None:
    out = np.empty(RELEASE_BLOCK, np.int64)
    _in_blocks(elements, lambda start: noise.draw(out, _KEY, first + start))


def _threads(noise: DiscreteGaussian, elements: int) -> None:
    share = elements // _THREADS
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(lambda number: _draw(noise, number * share, share), range(_THREADS)))


@dataclass(frozen=True)
class _Kept:
    """Sealed noise of one block, which is used for every block."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return 1 << 62

    def read(self, start: int, stop: int, /) -> memoryview:
        return memoryview(self.data)[: stop - start]


def _late_round(mechanism: Mechanism) -> RoundNoise:
    """The last of ``ROUNDS`` rounds."""
    state, history, sigma = (
        mechanism.begin(_KEY),
        dict.fromkeys(mechanism.needs, _Kept(bytes(8 * BANDS * RELEASE_BLOCK))),
        2.0**40,
    )
    for version in range(ROUNDS - 1):
        state = mechanism.advance(state, version, b"", sigma, bytes(32))
    return mechanism.round(state, ROUNDS - 1, b"", sigma, history)


def _block(noise: RoundNoise, start: int) -> Integers:
    """A block of noise, and its kept state."""
    block = noise.block(start, start + RELEASE_BLOCK)
    return noise.seal(block, start) if noise.keeps else block
