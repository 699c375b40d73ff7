"""The cases ``simulation`` and ``simulation-peers``."""

from __future__ import annotations

import compileall
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.bulk import MB
from benchmarks.figures import Figure
from benchmarks.options import Options, progress
from benchmarks.sampling import INTERVAL_S, family, memory_of
from benchmarks.simulation import data
from benchmarks.simulation.environments import PEERS, environment, versions
from benchmarks.starting import finished, piped

ROOT = Path(__file__).parents[2]
MS = 1000
FIT_MS, WORKERS, LR_ELEMENTS = 5.0, 2, 7850
SHARE = 0.15
"""Target for the overhead of a task over its bare ``fit``."""
WORKER_MODELS, WORKER_MB = 2.2, 150.0
POPULATION_MB, LR_S, TIMES_FLWR = 1500.0, 15.0, 10.0
_PROGRAM_S = 3600.0
_SOURCES = ("benchmarks", "client", "common", "protos", "server")


def run(options: Options) -> list[Figure]:
    """Cost of a task, a worker's memory, start-up, large populations, and two workloads; without other simulators."""
    command = options.command("simulation")
    return [
        *_tasks(options, command),
        *_large(options, command),
        *_populations(options, command),
        *_digits(options, command, peers=False),
        *([] if options.smoke else _lr_mnist(options, command, peers=False)),
    ]


def run_million(options: Options) -> list[Figure]:
    """A million participants."""
    size = options.or_else(options.clients, 10_000, 10)
    population = 1000 if options.smoke else 1_000_000
    return _population(population, size, options.or_else(options.rounds, 3, 1), options.command("simulation-million"))


def run_peers(options: Options) -> list[Figure]:
    """The digits, compared with other simulators, one after the other in the same run."""
    return _digits(options, options.command("simulation-peers"), peers=True)


def run_images_peers(options: Options) -> list[Figure]:
    """The same for lr_mnist, which has many rounds."""
    return _lr_mnist(options, options.command("simulation-images-peers"), peers=True)


def _tasks(options: Options, command: str) -> list[Figure]:
    figures = []
    rounds, size = options.or_else(options.rounds, 10, 1), options.or_else(options.clients, 100, 4)
    usual = ((0.0, 0), (0.0, WORKERS), (FIT_MS, WORKERS))
    for fit_ms, workers in usual[-1:] if options.smoke else usual:
        progress(f"tasks of {fit_ms:g} ms, {workers} workers")
        settings = {
            "fit_s": fit_ms / MS,
            "size": size,
            "rounds": rounds if fit_ms else 2 * rounds,
            "workers": workers,
            "repeats": 1 if options.smoke else 3,
            "elements": LR_ELEMENTS,
        }
        found = _played("tasks", settings)
        what = f"{fit_ms:g} ms a fit, {workers} workers" if workers else f"{fit_ms:g} ms a fit, in one process"
        above = MS * found["cpu_s"] - fit_ms
        if not fit_ms:
            figures.append(Figure.stated(f"processor time of a task, {what}", above, "ms", command))
            continue
        most = SHARE * fit_ms
        figures += [
            Figure.at_most(f"processor time of a task above its fit, {what}", above, "ms", most, command),
            Figure.stated(
                "  seconds of a task beside a plain loop over as many processes",
                MS * found["wall_s"],
                "ms",
                command,
                beside=MS * found["loop_s"],
            ),
        ]
    return figures


def _large(options: Options, command: str) -> list[Figure]:
    model_mb = options.or_else(options.model_mb, 100.0, 1.0)
    progress(f"a model of {model_mb:g} MB")
    elements = int(model_mb * MB) // 40 * 10
    settings = {"elements": elements, "size": 8, "rounds": 3, "workers": WORKERS}
    watched = _Watched("large", settings).watch()
    above = watched.worker_mb - model_mb  # the participant's own: its local weights
    most = WORKER_MODELS * model_mb + WORKER_MB
    name = f"anonymous memory of a worker above its participant's, {model_mb:g} MB"
    return [Figure.at_most(name, above, "MB", most, command)]


def _populations(options: Options, command: str) -> list[Figure]:
    sizes, rounds = [10_000, 100_000], options.or_else(options.rounds, 5, 1)
    if options.smoke:
        return _population(1000, 10, rounds, command)
    return [figure for population in sizes for figure in _population(population, 1000, rounds, command)]


def _population(population: int, size: int, rounds: int, command: str) -> list[Figure]:
    what = f"{population:,} participants, {size:,} a round"
    progress(what)
    settings = {"population": population, "size": size, "rounds": rounds, "workers": WORKERS, "keep": 1000}
    watched = _Watched("population", settings).watch()
    start_s = watched.said["start_s"]
    task_ms = MS * (watched.said["seconds"] - start_s) / (rounds * size)
    return [
        _memory(f"memory, {what}", watched.all_mb, population, command),
        Figure.stated("  seconds until the first round", start_s, "s", command),
        Figure.stated("  a task, logistic regression", task_ms, "ms", command),
    ]


def _memory(name: str, value: float, population: int, command: str) -> Figure:
    if population == 100_000:
        return Figure.at_most(name, value, "MB", POPULATION_MB, command)
    return Figure.stated(name, value, "MB", command)


def _digits(options: Options, command: str, *, peers: bool) -> list[Figure]:
    rounds = options.or_else(options.rounds, 20, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.npz"
        data.save_digits(path, population=100, size=10, rounds=rounds)
        return _beside(f"digits, 100 participants, 10 a round, {rounds} rounds", path, command, peers=peers)


def _lr_mnist(options: Options, command: str, *, peers: bool) -> list[Figure]:
    rounds = options.or_else(options.rounds, 100, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lr_mnist.npz"
        said = data.save_lr_mnist(path, population=1000, size=10, rounds=rounds)
        name = f"lr_mnist ({said}), 1,000 participants, 10 a round, {rounds} rounds"
        return _beside(name, path, command, peers=peers, most=LR_S)


def _beside(name: str, workload: Path, command: str, *, peers: bool, most: float | None = None) -> list[Figure]:
    """A workload's seconds from start to result and its accuracy, and those of the peers."""
    _compile()
    ours = _timed("atoll", Path(sys.executable), workload)
    figures = [
        Figure.stated(name, ours.seconds, "s", command)
        if most is None
        else Figure.at_most(name, ours.seconds, "s", most, command),
        Figure.stated("  accuracy", ours.accuracy, "share", command),
        Figure.stated("  until the first participant trains, and after the last", ours.around_s, "s", command),
    ]
    for peer in PEERS if peers else ():
        python = environment(peer, ROOT / ".tools" / "peers")
        theirs = _timed(peer, python, workload)
        said = versions(python, peer, "torch")
        times = theirs.seconds / ours.seconds
        figures += [
            Figure.at_least(f"  times as long with {said}", times, "", TIMES_FLWR if peer == "flwr" else 1.0, command),
            Figure.stated(f"  {peer}: seconds, beside ours", theirs.seconds, "s", command, beside=ours.seconds),
            Figure.stated(f"  {peer}: accuracy, beside ours", theirs.accuracy, "share", command, beside=ours.accuracy),
        ]
    return figures


def _compile() -> None:
    """Compile the checkout to bytecode, as pip does for the installed peers."""
    for folder in _SOURCES:
        compileall.compile_dir(ROOT / folder, quiet=1)


@dataclass(frozen=True)
class _Timed:
    """Seconds of a program from its start to its end, and its reported accuracy."""

    seconds: float
    accuracy: float
    around_s: float


def _timed(simulator: str, python: Path, workload: Path) -> _Timed:
    progress(f"{workload.stem} by {simulator}")
    began = time.perf_counter()
    said = _output([str(python), "-m", f"benchmarks.simulation.{simulator}_app", str(workload)])
    seconds = time.perf_counter() - began
    return _Timed(seconds, said["accuracy"], seconds - said["seconds"])


class _Watched:
    """Run a simulation in its own process, and measure the memory of its processes."""

    def __init__(self, case: str, settings: Mapping[str, Any]) -> None:
        self._command = [sys.executable, "-m", "benchmarks.simulation.playing", case, json.dumps(settings)]
        self.said: dict[str, float] = {}
        self.worker_mb = self.all_mb = 0.0

    def watch(self) -> Self:
        """Wait for its end; return peaks of a worker's anonymous memory, and of the total memory of all processes.

        Raises:
            RuntimeError: if it fails.
        """
        with piped(self._command) as program:
            assert program.stdout is not None
            while (code := program.poll()) is None:
                whole, *workers = [memory_of(pid) for pid in family(program.pid)]
                shared = max((one.mapped for one in (whole, *workers)), default=0)
                self.worker_mb = max([self.worker_mb, *(one.anonymous / MB for one in workers)])
                anonymous = whole.anonymous + sum(one.anonymous for one in workers)
                self.all_mb = max(self.all_mb, (anonymous + shared) / MB)
                time.sleep(INTERVAL_S)
            said = program.stdout.read()
            if code:
                raise RuntimeError(f"{' '.join(self._command)} ended with {code}")
        self.said = json.loads(said.splitlines()[-1])
        return self


def _played(case: str, settings: Mapping[str, Any]) -> dict[str, float]:
    return _output([sys.executable, "-m", "benchmarks.simulation.playing", case, json.dumps(settings)])


def _output(command: list[str]) -> dict[str, float]:
    written = finished(command, os.environ, _PROGRAM_S, ROOT)
    found: dict[str, float] = json.loads(written.splitlines()[-1])
    return found
