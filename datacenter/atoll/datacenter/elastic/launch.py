"""Start the ranks of a job file: the implementation of ``atoll silo train``."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import torch.distributed.elastic.rendezvous.registry as rendezvous
from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousError, RendezvousTimeoutError
from torch.numa.binding import AffinityMode, NumaOptions

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.elastic.agent import Agent
from atoll.datacenter.elastic.ending import FOLDER_VARIABLE
from atoll.datacenter.elastic.environment import grow_segments, keep_stop_handlers
from atoll.datacenter.elastic.event_names import name_events_quickly
from atoll.datacenter.elastic.failures import cause
from atoll.datacenter.elastic.replicas.launch import Groups
from atoll.datacenter.errors import LayoutError, StoppedError, TrainingError

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.job.operation import Numa

Outcome = Literal["finished", "stopped"]
MONITOR_S = 0.1
"""Seconds between two checks of the ranks."""
JOIN_TIMEOUT_S = 600
"""Seconds that nodes wait for each other."""
LAST_CALL_S = 5
"""Seconds that enough nodes wait for more."""
KEEP_ALIVE_S, KEEP_ALIVE_ATTEMPTS = 2, 3
"""Seconds and attempts; a node that is silent for their product counts as gone."""
_SIGNALLED = 128
_RUNNING = "running"
"""The outcome in ranks' files until they end."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Number of machines, and where they meet.

    Attributes:
        least: with fewer machines the job neither starts nor continues.
        most: further machines are not accepted.
        meeting: ``host:port`` on the first machine; empty: this machine alone.
        name: name of this start of the job, the same on every node.
    """

    least: int
    most: int
    meeting: str
    name: str


@dataclass(frozen=True, slots=True)
class Report:
    """How a job ended.

    Attributes:
        outcome: ``finished``, or ``stopped`` by a signal after a last checkpoint.
        step: number of completed steps.
        restarts: number of restarts.
        seconds: duration from start to end.
        exit_code: 0, or 128 + the signal.
        replicas_lost: replica groups lost while they took part, with recovery in place.
        replicas_healed: replica groups that came back with a live group's state.
    """

    outcome: Outcome
    step: int
    restarts: int
    seconds: float
    exit_code: int
    replicas_lost: int = 0
    replicas_healed: int = 0


def parse_nodes(text: str, nproc: int, min_world: int | None) -> tuple[int, int]:
    """Parse ``N`` or ``MIN:MAX``. For ``N`` the minimum is what ``faults.min_world`` needs, or N.

    Raises:
        LayoutError: naming the argument and what is allowed.
    """
    least, _, most = text.partition(":")
    try:
        low, high = int(least), int(most or least)
    except ValueError:
        raise LayoutError(f'--nnodes "{text}": allowed are a number of nodes, or MIN:MAX, e.g. 2:4') from None
    if not 1 <= low <= high:
        raise LayoutError(f'--nnodes "{text}": allowed are 1 <= MIN <= MAX')
    if min_world is None:
        return low, high
    needed = -(-min_world // nproc)
    if needed > high or (most and needed > low):
        raise LayoutError(
            f"faults.min_world = {min_world} needs {needed} nodes of {nproc} processes, but --nnodes {text} "
            f"{'starts no more than' if needed > high else 'continues with'} {high if needed > high else low}"
        )
    return (low if most else needed), high


def launch(
    job: SiloJob,
    command: list[str],
    nproc: int,
    nodes: Nodes,
    max_restarts: int,
    logs: Path,
    say: Callable[[str], None],
) -> Report:
    """Run the ranks of this node until the job ends.

    Args:
        job: checked.
        command: command of one rank, without the interpreter.
        nproc: ranks on this node.
        nodes: number of nodes, and where they meet.
        max_restarts: maximum number of restarts.
        logs: folder for the ranks' outputs and endings.
        say: called with a line about each event.

    Raises:
        StoppedError: if a signal ended the job without a last checkpoint.
        TrainingError: naming the failed rank, its message, and where to read more.
        LayoutError: if the job does not fit the nodes that have met.
    """
    grow_segments()
    keep_stop_handlers()
    if job.faults.recovery == "in-place":
        return _launch_groups(job, command, nproc, nodes, max_restarts, logs, say)
    began_s = time.monotonic()
    with _ranks_folder(logs) as ranks:
        spec = _spec(command, nproc, nodes, max_restarts, job.processes.numa)
        agent = Agent(spec, logs, say, partial(check_layout, job))
        _run(agent, spec, logs)
        ended = [one for one in _endings(ranks) if one["rank"] in _ranks_of(agent)]
    ending = Ending.of(ended, agent.stopping, logs)
    return Report(ending.outcome, ending.step, agent.restarts, time.monotonic() - began_s, ending.exit_code)


def _launch_groups(
    job: SiloJob,
    command: list[str],
    nproc: int,
    nodes: Nodes,
    max_restarts: int,
    logs: Path,
    say: Callable[[str], None],
) -> Report:
    if nodes.most > 1:
        raise LayoutError(
            f'faults.recovery = "in-place" is for one machine, whose launcher restarts single replica groups, but '
            f'--nnodes asks for {nodes.most}: leave it out, or set faults.recovery = "restart"'
        )
    began_s = time.monotonic()
    with _ranks_folder(logs) as ranks:
        groups = Groups(job, command, nproc, max_restarts, logs, ranks, say)
        groups.run()
        ending = Ending.of(groups.reports(), groups.stopping, logs)
    lost, healed = groups.coordinator.counts
    seconds = time.monotonic() - began_s
    return Report(ending.outcome, ending.step, groups.restarts, seconds, ending.exit_code, lost, healed)


@dataclass(frozen=True, slots=True)
class Ending:
    """How ranks have ended: outcome, step and exit code as in ``Report``."""

    outcome: Outcome
    step: int
    exit_code: int

    @classmethod
    def of(cls, reports: Sequence[Mapping[str, object]], stopping: signal.Signals | None, logs: Path) -> Self:
        """Read the ranks' reports.

        Raises:
            TrainingError: if a rank that has ended did not report how.
        """
        if silent := [str(one["rank"]) for one in reports if one["outcome"] == _RUNNING]:
            raise TrainingError(f"rank {', '.join(silent)} ended without a report; the ranks' outputs are in {logs}")
        stopped = any(one["outcome"] == "stopped" for one in reports)
        code = _SIGNALLED + stopping if stopping is not None and stopped else 0
        step = max((int(str(one["step"])) for one in reports), default=0)
        return cls("stopped" if stopped else "finished", step, code)


def _run(agent: Agent, spec: WorkerSpec, logs: Path) -> None:
    runs: Any = agent  # the parent's decorator hides its type
    try:
        result: RunResult | None = runs.run()
    except SignalException as error:  # the meeting stays open: other nodes may go on without this one
        raise StoppedError(error.sigval, "without a last checkpoint") from error
    except RendezvousTimeoutError as error:
        raise TrainingError(f"not enough nodes have met within {JOIN_TIMEOUT_S} s: start the others") from error
    except (DistError, RendezvousError) as error:
        raise TrainingError(f"the nodes lost each other: {error}; start the same command again") from error
    spec.rdzv_handler.shutdown()
    if result is None:
        raise TrainingError("the other nodes have ended the job: look at their output")
    if result.is_failed():
        root = cause(agent.failures)
        if agent.stopping is not None and root.status == -signal.SIGTERM:  # sent by the agent; later a rank takes it
            raise StoppedError(agent.stopping, "before training had begun: earlier checkpoints are unchanged")
        spent = f" after {agent.restarts} restart{'s' * (agent.restarts > 1)}" if agent.restarts else ""
        raise TrainingError(f"{root}\nthe job failed{spent}; the ranks' outputs are in {logs}")


def _spec(command: list[str], nproc: int, nodes: Nodes, max_restarts: int, numa: Numa) -> WorkerSpec:
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=nodes.meeting or "localhost:0",
        run_id=nodes.name,
        min_nodes=nodes.least,
        max_nodes=nodes.most,
        local_addr=None if nodes.meeting else "localhost",
        join_timeout=JOIN_TIMEOUT_S,
        last_call_timeout=LAST_CALL_S,
        keep_alive_interval=KEEP_ALIVE_S,
        keep_alive_max_attempt=KEEP_ALIVE_ATTEMPTS,
    )
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc)))
    name_events_quickly()
    return WorkerSpec(
        role="rank",
        local_world_size=nproc,
        entrypoint=sys.executable,
        args=("-u", *command),
        rdzv_handler=rendezvous.get_rendezvous_handler(parameters),
        max_restarts=max_restarts,
        monitor_interval=MONITOR_S,
        local_addr=None if nodes.meeting else "localhost",
        numa_options=None if numa == "none" else NumaOptions(affinity_mode=AffinityMode(numa)),
    )


@contextmanager
def _ranks_folder(logs: Path) -> Iterator[Path]:
    """Make the folder for the ranks' reports, and name it to them in the environment."""
    logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ranks-", dir=logs) as folder:
        os.environ[FOLDER_VARIABLE] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ[FOLDER_VARIABLE]


def _ranks_of(agent: Agent) -> set[int]:
    """Return the ranks of the last attempt: with fewer nodes than before, files of former ranks remain."""
    return {worker.global_rank for worker in agent.get_worker_group().workers}


def _endings(ranks: Path) -> Iterator[Mapping[str, object]]:
    for path in sorted(ranks.glob("rank-*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))
