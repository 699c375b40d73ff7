"""Run benchmarks: ``python -m benchmarks [NAME ...]``; results go to benchmarks/results/NAME.json.

A single case with other settings: ``python -m benchmarks bulk --model-mb 400 --clients 4 --tls``; its results are
printed, not kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks import (
    bulk,
    connected,
    console,
    fleet,
    flood,
    fold,
    growth,
    memory,
    population,
    privacy_digits,
    privacy_mechanisms,
    privacy_noise,
    privacy_round,
    privacy_samples,
    rounds,
    soak,
    study,
    workers,
)
from benchmarks.options import Case, Options
from benchmarks.runner import exit_with, run_all
from benchmarks.simulation import cases as simulation
from benchmarks.starting import forks

_SIZES = frozenset({"model_mb", "clients", "rounds", "tls"})
CASES: dict[str, Case] = {
    "fold": Case(fold.run),
    "rounds": Case(rounds.run, frozenset({"clients", "rounds", "tls"})),
    "connected": Case(connected.run, frozenset({"clients", "rounds"})),
    "connected-10000": Case(connected.run_many, by_name_only=True),
    "bulk": Case(bulk.run, _SIZES | {"workers"}),
    "memory": Case(memory.run, _SIZES | {"workers"}),
    "workers": Case(workers.run, _SIZES | {"workers"}),
    "console": Case(console.run, frozenset({"clients", "rounds"})),
    "fleet": Case(fleet.run, frozenset({"model_mb", "clients", "rounds", "only"}), parts=tuple(fleet.PARTS)),
    "growth": Case(growth.run, _SIZES),
    "population": Case(population.run, frozenset({"clients"})),
    "flood": Case(flood.run, frozenset({"clients", "rounds"})),
    "privacy-digits": Case(privacy_digits.run, frozenset({"clients", "rounds"})),
    "privacy-mechanisms": Case(privacy_mechanisms.run),
    "privacy-noise": Case(privacy_noise.run),
    "privacy-round": Case(privacy_round.run, _SIZES),
    "privacy-samples": Case(privacy_samples.run),
    "simulation": Case(simulation.run, frozenset({"model_mb", "clients", "rounds"})),
    "simulation-million": Case(simulation.run_million, frozenset({"clients", "rounds"}), by_name_only=True),
    "simulation-images-peers": Case(simulation.run_images_peers, frozenset({"rounds"}), by_name_only=True),
    "simulation-peers": Case(simulation.run_peers, frozenset({"rounds"}), by_name_only=True),
    "study": Case(study.run, by_name_only=True),
    "soak": Case(soak.run, frozenset({"minutes"}), by_name_only=True),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; return 1 if a figure misses its target, except in a smoke run, which only shows that they run."""
    parser = _parser()
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in CASES]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(CASES)}")
    settings = {key: value for key, value in vars(given).items() if key not in {"names", "json"}}
    options, names = Options(**settings), given.names or [name for name, case in CASES.items() if not case.by_name_only]
    for name in names:
        if refused := CASES[name].refused(options):
            parser.error(f"{name} has no setting {', '.join('--' + one.replace('_', '-') for one in refused)}")
        if options.only is not None and options.only not in CASES[name].parts:
            parser.error(f"{name} has no part {options.only}; there are {', '.join(CASES[name].parts)}")
    kept = replace(options, minutes=None) == Options() and (options.minutes or soak.MINUTES) >= soak.MINUTES
    cases = {name: partial(CASES[name].run, options) for name in names}
    with forks(wanted=options.smoke):
        good = run_all(cases, kept_as="" if kept else None, as_json=given.json)
    return 0 if options.smoke or good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which: {', '.join(CASES)}; default: all but "
        + ", ".join(name for name, case in CASES.items() if case.by_name_only),
    )
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, nothing kept: only that everything runs")
    parser.add_argument("--model-mb", type=float, help="size of the model, in 10^6 bytes")
    parser.add_argument("--clients", type=int, help="participants")
    parser.add_argument("--workers", type=int, help="ingest processes of the server")
    parser.add_argument("--rounds", type=int, help="measured rounds")
    parser.add_argument("--minutes", type=float, help=f"of a soak (default: {soak.MINUTES:g})")
    parser.add_argument("--tls", action=argparse.BooleanOptionalAction, default=None, help="with TLS, or without")
    parser.add_argument("--insecure", dest="tls", action="store_false", default=None, help="the same as --no-tls")
    parser.add_argument("--only", metavar="PART", help=f"one part of fleet: {', '.join(fleet.PARTS)}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    exit_with(main)
