"""Run benchmarks one after the other, for ``python -m benchmarks`` and ``python -m benchmarks.silo``."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

from benchmarks.figures import Figure, machine, table, write
from benchmarks.options import progress


def run_all(cases: Mapping[str, Callable[[], Iterable[Figure]]], *, kept_as: str | None, as_json: bool) -> bool:
    """Run each and print its figures.

    Args:
        cases: by name. If a case yields its figures one by one, those measured before an error are kept.
        kept_as: prefix of the results' names; None: results are not kept.
        as_json: print JSON, once all have run.

    Returns:
        whether all figures meet their targets.
    """
    figures: list[Figure] = []
    for name, case in cases.items():
        started = time.monotonic()
        progress(f"{name} ...")
        found: list[Figure] = []
        for figure in case():
            found.append(figure)
            if kept_as is not None:
                write(f"{kept_as}{name}", found)
        progress(f"{name}: {time.monotonic() - started:.0f} s")
        if not as_json:
            print(table(found), flush=True)
        figures += found
    print(json.dumps([asdict(figure) for figure in figures], indent=1) if as_json else f"on {machine()}")
    return all(figure.ok for figure in figures)


def exit_with(main: Callable[[], int]) -> None:
    """Run it as the program; on SIGTERM it still ends its processes and removes its files (gigabytes)."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
