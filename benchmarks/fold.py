"""The rate of folding payloads into the integer sum, compared with a plain float32 ``acc += w * x`` in the same run.

The plain loop is compiled like the fold and walks the same chunks; a fold moves 20 bytes per float32 element (4 read, 8
read, 8 written), the plain loop 12. Cases take turns, and the best of each counts, so a busy neighbour slows all alike.
Target: a float32 fold at 0.5 or more of the plain loop; the other ratios have no target.

    python -m benchmarks.fold [--elements N] [--repeats N] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.server.aggregation import Grid, grid_for, inspect, warm
from atoll.server.aggregation._jit import array_type, compiled, scalar_type
from atoll.server.aggregation.kernel import fold
from atoll.wire.chunks import ElementRange
from atoll.wire.digest import DEFAULT_CHUNK_BYTES
from atoll.wire.encoding import Encoding, encode, most_elements
from benchmarks.figures import Figure, table
from benchmarks.options import Options

TARGET = 0.5
PLAIN = "plain float32 acc += w*x"
READ = "plain float32 read (numpy max)"
UNIT = "Gelement/s"
Array = npt.NDArray[Any]
Chunks = list[tuple[ElementRange, memoryview]]


def measure(elements: int = 1 << 26, repeats: int = 9) -> list[Figure]:
    """The rates of the fold in each encoding, of a strided fold and of inspection, in 10^9 elements per second.

    Holds 34 bytes per element.
    """
    warm()
    rates = _rates(_cases(elements), elements, repeats)
    command = f"python -m benchmarks.fold --elements {elements} --repeats {repeats}"
    figures = []
    for name, rate in rates.items():
        limit = rates[READ if name == READ or name.startswith("inspect") else PLAIN]
        target = TARGET if name == "fold float32" else None
        ratio = rate / limit
        figures.append(Figure(name, rate, UNIT, limit, ratio, target, target is None or ratio >= target, command))
    return figures


def run(options: Options) -> list[Figure]:
    """The case for ``python -m benchmarks fold``."""
    return measure(1 << 20, 1) if options.smoke else measure()


def _rates(cases: dict[str, Callable[[], object]], elements: int, repeats: int) -> dict[str, float]:
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(repeats):
        for name, case in cases.items():
            started = time.perf_counter()
            case()
            best[name] = min(best[name], time.perf_counter() - started)
    return {name: elements / seconds / 1e9 for name, seconds in best.items()}


def _cases(elements: int) -> dict[str, Callable[[], object]]:
    values = np.random.default_rng(0).standard_normal(elements, dtype=np.float32)
    plain_sums = np.zeros(elements, np.float32)
    sums = np.zeros(elements, np.int64)
    plain_sums += values  # touches the memory
    sums.fill(1)
    grid = grid_for(1000)
    cases: dict[str, Callable[[], object]] = {PLAIN: partial(_plain_chunks, _plain_loop(), plain_sums, values)}
    for encoding in Encoding:
        chunks = _chunks(values, encoding)
        cases[f"fold {encoding.name.lower()}"] = partial(_fold_chunks, sums, chunks, encoding, grid)
    cases["fold float32, columns of 1 in 2"] = partial(_fold_columns, sums, values, grid)
    cases[READ] = values.max
    for encoding in (Encoding.FLOAT32, Encoding.INT8_BLOCK, Encoding.INT4_BLOCK):
        cases[f"inspect {encoding.name.lower()}"] = partial(_inspect_chunks, _chunks(values, encoding), encoding)
    return cases


def _plain_loop() -> Callable[[Array, Array, float], None]:
    signature = (array_type(np.float32, writable=True), array_type(np.float32), scalar_type(np.float32))
    return compiled(_accumulate, signature)


def _accumulate(sums: Array, values: Array, weight: float) -> None:
    for at in range(values.size):
        sums[at] += weight * values[at]


def _cuts(elements: int, encoding: Encoding) -> list[slice]:
    step = most_elements(encoding, DEFAULT_CHUNK_BYTES)
    return [slice(start, min(start + step, elements)) for start in range(0, elements, step)]


def _chunks(values: Array, encoding: Encoding) -> Chunks:
    return [
        (ElementRange.run(cut.start, cut.stop - cut.start), encode(values[cut], encoding).data)
        for cut in _cuts(values.size, encoding)
    ]


def _plain_chunks(loop: Callable[[Array, Array, float], None], sums: Array, values: Array) -> None:
    for cut in _cuts(values.size, Encoding.FLOAT32):
        loop(sums[cut], values[cut], 0.5)


def _fold_chunks(sums: Array, chunks: Chunks, encoding: Encoding, grid: Grid) -> None:
    for target, payload in chunks:
        fold(sums, target, payload, encoding, 1000, grid)


def _fold_columns(sums: Array, values: Array, grid: Grid) -> None:
    """One half of each row of a matrix 2,048 wide, for two participants: every other 1,024 elements."""
    block, step = 1024, DEFAULT_CHUNK_BYTES // 4
    for offset in (0, block):
        for start in range(0, values.size - 2 * step + 1, 2 * step):
            target = ElementRange(start + offset, block, 2 * block, step // block)
            fold(sums, target, values[start : start + step].data, Encoding.FLOAT32, 1000, grid)


def _inspect_chunks(chunks: Chunks, encoding: Encoding) -> None:
    for target, payload in chunks:
        inspect(payload, encoding, target.size)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--elements", type=int, default=1 << 26, help="elements of the model (default 2^26: 256 MiB)")
    parser.add_argument("--repeats", type=int, default=9, help="repetitions; the best of each case counts (default 9)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    figures = measure(options.elements, options.repeats)
    if options.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=2))
        return
    print(table(figures))


if __name__ == "__main__":
    main()
