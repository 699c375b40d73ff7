"""Run benchmarks: ``python -m benchmarks [NAME ...]``; results go to benchmarks/results/NAME.json."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import fold, rounds
from benchmarks.figures import Figure, table

RESULTS = Path(__file__).parent / "results"
CASES: dict[str, Callable[[bool], list[Figure]]] = {"fold": fold.run, "rounds": rounds.run}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; 1 if a figure misses its target, but never in a smoke run, which only shows that they run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(CASES)}; default: all")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, nothing kept: only that everything runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in CASES]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(CASES)}")
    figures = []
    for name in options.names or CASES:
        found = CASES[name](options.smoke)
        figures += found
        if not options.smoke:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{name}.json").write_text(json.dumps([asdict(figure) for figure in found], indent=1) + "\n")
    print(json.dumps([asdict(figure) for figure in figures], indent=1) if options.json else table(figures))
    return 0 if options.smoke or all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
