"""Whole rounds over loopback TLS between real processes, with participants that do not train.

What is timed is everything between two releases: draw, invitation, download, upload, durable commit, sum, new model.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from atoll.wire import safetensors
from atoll.wire.layout import Dtype, Layout, TensorSpec
from benchmarks.figures import Figure

ATOLL = [sys.executable, "-c", "from atoll.client.cli import main; main()"]
ROOT = Path(__file__).parents[1]
ROUNDS_PER_S = 20.0
OVERHEAD_S = 0.1
WAIT_S = 600

_JOB = """
[job]
name = "benchmark"
rounds = {rounds}

[model]
initial = "init.safetensors"

[cohort]
size = {clients}

[evaluation]
before_training = false
final = false
"""


def run(smoke: bool) -> list[Figure]:
    """Rates and times of rounds with a 10 KB model and, unless ``smoke``, with 100 MB; two clients."""
    small = _closing_times(clients=2, elements=2560, rounds=5 if smoke else 200)
    gaps = np.diff(small)[1:]
    rate = 1.0 / statistics.mean(gaps)
    slowest = float(np.percentile(gaps, 99))
    command = "python -m benchmarks rounds"
    prompt = slowest < OVERHEAD_S
    figures = [
        Figure("rounds of 10 KB, 2 clients", rate, "rounds/s", None, None, ROUNDS_PER_S, rate >= ROUNDS_PER_S, command),
        Figure("round of 10 KB, 99th percentile", slowest, "s", None, None, OVERHEAD_S, prompt, command),
    ]
    if not smoke:
        large = np.diff(_closing_times(clients=2, elements=25_000_000, rounds=6))[1:]
        figures.append(
            Figure("round of 100 MB, 2 clients, median", float(np.median(large)), "s", None, None, None, True, command)
        )
    return figures


def _closing_times(*, clients: int, elements: int, rounds: int) -> list[float]:
    """Epoch seconds at which each round was released."""
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder, _processes() as start:
        place = Path(folder)
        environment = {**os.environ, "ATOLL_DATA": str(place / "data"), "PYTHONPATH": str(ROOT)}
        _start_server(start, place, environment)
        tokens = _call(["token", "new", "--count", str(clients), "--json"], environment)["tokens"]
        for number, token in enumerate(tokens):
            state = place / f"client-{number}"
            arguments = ["client", "start", "benchmarks.participants:Idle", "--join", token, "--state", str(state)]
            start(arguments, environment)
        (place / "job.toml").write_text(_JOB.format(rounds=rounds, clients=clients))
        layout = Layout((TensorSpec("weight", (elements,), Dtype.FLOAT32),))
        safetensors.write(place / "init.safetensors", layout, [np.zeros(elements, np.float32).data])
        submitted = _call(["run", "submit", str(place / "job.toml"), "--json"], environment)
        subprocess.run(
            [*ATOLL, "run", "watch", submitted["run"]], env=environment, check=True, timeout=WAIT_S, capture_output=True
        )
        shown = _call(["run", "show", submitted["run"], "--json"], environment)
        return [entry["closed_at"] for entry in shown["rounds"] if entry["phase"] == "released"]


def _start_server(start: Any, place: Path, environment: dict[str, str]) -> None:
    reading, writing = os.pipe()
    arguments = ["server", "start", "--port", "0", "--ready-fd", str(writing), "--log-level", "warning"]
    start(arguments, environment, writing)
    os.close(writing)
    with os.fdopen(reading) as ready:
        if not ready.readline():
            raise RuntimeError(f"the server did not start; its data directory was {place / 'data'}")


def _call(arguments: list[str], environment: dict[str, str]) -> Any:
    done = subprocess.run([*ATOLL, *arguments], env=environment, check=True, timeout=WAIT_S, capture_output=True)
    return json.loads(done.stdout)


@contextlib.contextmanager
def _processes() -> Iterator[Any]:
    """Gives a function that starts ``atoll`` with arguments; everything started is ended on leaving."""
    started: list[subprocess.Popen[bytes]] = []

    def start(arguments: list[str], environment: dict[str, str], *descriptors: int) -> None:
        process = subprocess.Popen(
            [*ATOLL, *arguments],
            env=environment,
            pass_fds=descriptors,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)

    try:
        yield start
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
