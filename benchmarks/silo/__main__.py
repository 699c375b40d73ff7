"""Run silo benchmarks: ``python -m benchmarks.silo [NAME ...]``; results go to benchmarks/results/silo-NAME.json.

A case is a function that takes whether it is a smoke run (tiny sizes, nothing kept) and gives figures; add it to
``CASES``.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TypeAlias

from benchmarks.figures import Figure, machine, table, write
from benchmarks.options import progress
from benchmarks.silo import collectives, exchange, faults, overhead, planner

Case: TypeAlias = Callable[[bool], list[Figure]]

CASES: Mapping[str, Case] = {
    "collectives": collectives.run,
    "exchange": exchange.run,
    "faults": faults.run,
    "overhead": overhead.run,
    "planner": planner.run,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; 1 if a figure misses its target, but never in a smoke run, which only shows that they run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.silo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(CASES)}; default: all")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, nothing kept: only that everything runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in CASES]:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(CASES)}")
    figures: list[Figure] = []
    for name in given.names or CASES:
        found = _run(name, smoke=given.smoke)
        if not given.json:
            print(table(found), flush=True)
        figures += found
    if given.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=1))
    else:
        print(f"on {machine()}")
    return 0 if given.smoke or all(figure.ok for figure in figures) else 1


def _run(name: str, *, smoke: bool) -> list[Figure]:
    started = time.monotonic()
    progress(f"{name} ...")
    found = CASES[name](smoke)
    progress(f"{name}: {time.monotonic() - started:.0f} s")
    if not smoke:
        write(f"silo-{name}", found)
    return found


if __name__ == "__main__":
    # Ended from outside, it still ends what it has started and removes its files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
