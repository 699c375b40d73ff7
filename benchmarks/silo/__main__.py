"""Run silo benchmarks: ``python -m benchmarks.silo [NAME ...]``; results go to benchmarks/results/silo-NAME.json.

A case is a module of this folder. Its ``run`` gets a flag for a smoke run (tiny sizes, nothing kept) and returns
figures; add its name to ``CASES``. A module is imported only when its case is requested, because machines with GPUs
have few libraries.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import TypeAlias

from benchmarks.figures import Figure
from benchmarks.runner import exit_with, run_all
from benchmarks.starting import forks

Case: TypeAlias = Callable[..., Iterable[Figure]]

CASES = ("collectives", "diloco", "exchange", "faults", "gpu", "overhead", "planner", "published")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; return 1 if a figure misses its target, except in a smoke run, which only shows that they run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.silo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(CASES)}; default: all")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, nothing kept: only that everything runs")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="diloco: repeat for so many seeds")
    parser.add_argument("--row", action="append", default=[], metavar="NAME", help="gpu: only this row; repeatable")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in CASES]:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(CASES)}")
    if given.seeds < 1 or (given.seeds > 1 and given.names != ["diloco"]):
        parser.error("--seeds is a number from 1, and diloco's alone")
    if given.row and given.names != ["gpu"]:
        parser.error("--row is gpu's alone")
    rows = set(import_module("benchmarks.silo.gpu.rows").ROWS) if given.row else set()
    if missing := set(given.row) - rows:
        parser.error(f"no such row: {', '.join(sorted(missing))}; there are {', '.join(sorted(rows))}")
    more = (given.seeds,) if given.seeds > 1 else (given.row,) if given.row else ()
    cases = {name: partial(_case(name), given.smoke, *more) for name in given.names or CASES}
    with forks(wanted=given.smoke):
        good = run_all(cases, kept_as=None if given.smoke else "silo-", as_json=given.json)
    return 0 if given.smoke or good else 1


def _case(name: str) -> Case:
    run: Case = import_module(f"benchmarks.silo.{name}").run
    return run


if __name__ == "__main__":
    exit_with(main)
