"""Start real servers and idle participants on loopback, as subprocesses, for benchmarks of whole rounds.

with federation(clients=2, tls=True) as place:
    course = place.run(elements=2560, rounds=200)
    course.seconds   # of each round but the first, from release to release
    course.first_s   # of the first, which also makes caches and touches memory
    course.server    # peak memory of the server's processes
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from atoll.formats import safetensors
from atoll.wire.layout import Dtype, Layout, TensorSpec
from benchmarks import starting
from benchmarks.sampling import Memory, Sampler
from benchmarks.starting import ATOLL, ROOT, Process

WAIT_S = 1800
_PIECE = 1 << 22
_NONE: Mapping[str, str] = MappingProxyType({})
_WATCHED = 4
"""Number of participants whose memory is sampled; sampling many would slow the rounds."""

JOB = """
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


@dataclass(frozen=True)
class Course:
    """The measurements of a run.

    Attributes:
        first_s: seconds of the first round, from its opening, in which caches are filled and memory is touched.
        warming: seconds of the other rounds of the warm-up.
        seconds: of each later round, from the previous release to its own, without gaps.
        rounds: the rounds as ``atoll run show --json`` prints them, released ones only.
        server: peak memory of all processes of the server.
        client: peak memory of the largest of the first few participants.
        disk_bytes: peak size of the server's data directory, in samples; 0 if it was not sampled.
        cpu_s: processor seconds of each later round, of the server and all participants.
        server_cpu_s: the server's share of them.
    """

    first_s: float
    warming: list[float]
    seconds: list[float]
    rounds: list[dict[str, Any]]
    server: Memory
    client: Memory
    disk_bytes: int
    cpu_s: float
    server_cpu_s: float


class Federation:
    """A running server and the processes of its participants; created by ``federation``."""

    def __init__(
        self, place: Path, nursery: Nursery, *, tls: bool, variables: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.place = place
        self.data = place / "data"
        self.tls = tls
        self.environment = {**os.environ, **variables, "ATOLL_DATA": str(self.data), "PYTHONPATH": python_path()}
        self.address = ""
        self.metrics = ""
        self.server: Process | None = None
        self.participants: list[Process] = []
        self._nursery = nursery

    def start_server(self, *options: str, program: Sequence[str] = ()) -> None:
        """Start the server and wait until it serves; ``program`` replaces ``atoll``.

        Raises:
            RuntimeError: if it does not.
        """
        reading, writing = os.pipe()
        arguments = ["server", "start", "--port", "0", "--ready-fd", str(writing), "--log-level", "warning", *options]
        if not self.tls:
            arguments.append("--insecure")
        self.server = self._nursery.start(
            [*(program or ATOLL), *arguments], self.environment, "server", keep_open=(writing,)
        )
        os.close(writing)
        with os.fdopen(reading) as ready:
            line = ready.readline()
        if not line:
            raise RuntimeError(f"the server did not start:\n{self._nursery.log('server')[-4000:]}")
        facts = json.loads(line)
        self.address, self.metrics = facts["address"], facts["metrics"]
        if not self.tls:
            self.environment["ATOLL_SERVER"] = self.address

    def server_log(self) -> str:
        """The server's output."""
        return self._nursery.log("server")

    def log(self, name: str) -> str:
        """The output of a participant process."""
        return self._nursery.log(name)

    def start_clients(self, count: int, *, weights: str = "array", server: str = "") -> None:
        """Start participants that do not train, each in its own process.

        Args:
            count: number of participants.
            weights: see ``participants.Idle``.
            server: address of another server than the active one, with TLS only.
        """
        access = self._tokens(count) if self.tls else [self._insecure(number) for number in range(count)]
        for number, how in enumerate(access, len(self.participants)):
            name = f"client-{number}"
            arguments = ["client", "start", "benchmarks.participants:Idle", "--arg", f"weights={weights}", *how]
            arguments += ["--state", str(self.place / name), *(["--server", server] if server else [])]
            self.participants.append(self._nursery.start([*ATOLL, *arguments], self.environment, name))

    def start_process(
        self,
        arguments: Sequence[str],
        name: str,
        keep_open: Sequence[int] = (),
        standard_input: int | None = None,
    ) -> Process:
        """Start another participant process; it counts as one of them and is ended with the others."""
        process = self._nursery.start(arguments, self.environment, name, keep_open, standard_input)
        self.participants.append(process)
        return process

    def run(
        self, *, elements: int, rounds: int, clients: int, job: str = JOB, watch_disk: bool = False, warm_up: int = 1
    ) -> Course:
        """Train ``rounds`` rounds with a model of ``elements`` float32 elements and wait for the end.

        The first ``warm_up`` of them are listed separately.

        Raises:
            RuntimeError: if the run releases fewer models.
        """
        assert self.server is not None, "start_server first"
        (self.place / "job.toml").write_text(job.format(rounds=rounds, clients=clients))
        write_zeros(self.place / "init.safetensors", elements)
        groups = {"server": self.server.pid}
        groups |= {f"client {one.pid}": one.pid for one in self.participants[:_WATCHED]}
        processes = [self.server.pid, *(one.pid for one in self.participants)]
        with Sampler(groups, self.data if watch_disk else None, spenders=processes) as sampler:
            run = self.call("run", "submit", str(self.place / "job.toml"))["run"]
            self.command("run", "watch", run)
            shown = self.call("run", "show", run)
        released = [entry for entry in shown["rounds"] if entry["phase"] == "released"]
        if len(released) != rounds:
            raise RuntimeError(f"{len(released)} of {rounds} rounds were released: {shown}"[:4000])
        closed = [float(entry["closed_at"]) for entry in released]
        gaps = [float(gap) for gap in np.diff(closed)]
        began, ended, measured = closed[warm_up - 1], closed[-1], max(1, rounds - warm_up)
        largest = max((sampler.peak(name) for name in groups if name != "server"), key=lambda one: one.anonymous)
        return Course(
            first_s=closed[0] - float(released[0]["opened_at"]),
            warming=gaps[: warm_up - 1],
            seconds=gaps[warm_up - 1 :],
            rounds=released,
            server=sampler.peak("server"),
            client=largest,
            disk_bytes=sampler.disk_bytes,
            cpu_s=sampler.cpu_s(began, ended) / measured,
            server_cpu_s=sampler.cpu_s(began, ended, self.server.pid) / measured,
        )

    def call(self, *arguments: str) -> Any:
        """An ``atoll`` command's answer, from its ``--json``."""
        return json.loads(self.command(*arguments, "--json"))

    def command(self, *arguments: str) -> bytes:
        """Run an ``atoll`` command as the operator; return its output.

        Raises:
            RuntimeError: if it fails; the message has its output.
        """
        if not self.tls:
            arguments = (*arguments, "--insecure")
        return starting.finished([*ATOLL, *arguments], self.environment, WAIT_S)

    def _tokens(self, count: int) -> list[list[str]]:
        tokens = self.call("token", "new", "--count", str(count))["tokens"]
        return [["--join", token] for token in tokens]

    def _insecure(self, number: int) -> list[str]:
        return ["--insecure", "--server", self.address, "--participant", participant_id(number)]


@contextlib.contextmanager
def federation(
    *,
    clients: int,
    tls: bool = True,
    workers: int = 1,
    weights: str = "array",
    options: Sequence[str] = (),
    variables: Mapping[str, str] = _NONE,
) -> Iterator[Federation]:
    """A server with ``clients`` idle participants, each a process; everything ends with the ``with`` block.

    Args:
        clients: number of participants.
        tls: mutual TLS, or plaintext.
        workers: ingest processes of the server.
        weights: see ``participants.Idle``.
        options: further ones of ``atoll server start``.
        variables: further ones of every process's environment.
    """
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder, Nursery(Path(folder)) as nursery:
        made = Federation(Path(folder), nursery, tls=tls, variables=variables)
        made.start_server("--workers", str(workers), *options)
        if clients:
            made.start_clients(clients, weights=weights)
        yield made


def participant_id(number: int) -> str:
    """An id for a participant without a certificate: ``p`` and twelve letters."""
    letters = "".join(chr(ord("a") + number // 26**place % 26) for place in reversed(range(8)))
    return f"pidle{letters}"


class Nursery:
    """Starts processes with a log each, and ends all of them on leaving."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Process] = []

    def start(
        self,
        arguments: Sequence[str],
        environment: dict[str, str],
        name: str,
        keep_open: Sequence[int] = (),
        standard_input: int | None = None,
    ) -> Process:
        """Start one; its output goes to the log of that name."""
        with self._log(name).open("wb") as output:
            process = starting.start(
                arguments,
                environment=environment,
                output=output,
                errors=output,
                standard_input=standard_input,
                keep_open=keep_open,
            )
        self._started.append(process)
        return process

    def log(self, name: str) -> str:
        """The output of a process."""
        return self._log(name).read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            process.send_signal(signal.SIGTERM)
        for process in self._started:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def write_zeros(path: Path, elements: int) -> None:
    """A model file of one float32 tensor."""
    layout = Layout((TensorSpec("weight", (elements,), Dtype.FLOAT32),))
    zeros = np.zeros(min(elements, _PIECE), np.float32)
    pieces = (zeros[: min(_PIECE, elements - start)].data for start in range(0, elements, _PIECE))
    safetensors.write(path, layout, pieces)


def python_path() -> str:
    """Environment in which processes find the benchmarks, and this one's arguments."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
