"""Start the ranks of replica groups on this machine, and restart only the group that is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, Std, start_processes

from atoll.datacenter.elastic.agent import failure_of, has_ended, has_failed
from atoll.datacenter.elastic.ending import FOLDER_VARIABLE, PRINTS_VARIABLE
from atoll.datacenter.elastic.failures import Failure, cause, is_final, is_repeated
from atoll.datacenter.elastic.replicas.coordinator import HOST, Coordinator
from atoll.datacenter.elastic.replicas.link import TICKET_VARIABLE, Ticket
from atoll.datacenter.elastic.replicas.standing import Rules
from atoll.datacenter.errors import StoppedError, TrainingError
from atoll.datacenter.mesh.world import ATTEMPT_VARIABLE

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob

MONITOR_S = 0.1
"""Seconds between two checks of the processes."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass
class _Running:
    """The processes of one group.

    Attributes:
        context: torch's handle of them.
        resumes: whether they will continue from the last checkpoint; false once they have.
        ended: why the launcher is ending them; empty: it is not.
    """

    context: PContext
    resumes: bool
    ended: str = ""


class Groups:
    """The replica groups of a job on this machine; a context manager that leaves no process behind.

    Args:
        job: checked.
        command: command of one rank, without the interpreter.
        nproc: ranks of all groups together.
        max_restarts: maximum number of restarts of groups.
        logs: folder for the ranks' outputs.
        endings: folder for the ranks' reports, one folder in it for each group.
        say: called with a line about each event.

    Attributes:
        restarts: number of restarts of groups.
        stopping: the signal that asked for a stop; None if none did.
        coordinator: decides who is in a step.
    """

    def __init__(
        self,
        job: SiloJob,
        command: list[str],
        nproc: int,
        max_restarts: int,
        logs: Path,
        endings: Path,
        say: Callable[[str], None],
    ) -> None:
        self._command, self._nproc, self._logs, self._endings, self._say = command, nproc, logs, endings, say
        self._count = job.mesh.dp_replicate
        self._ranks = nproc // self._count
        self._max_restarts, self._least = max_restarts, job.faults.min_replicas
        faults = job.faults
        rules = Rules(
            self._count,
            self._ranks,
            job.job.steps,
            faults.backup_replicas,
            faults.min_replicas,
            faults.collective_timeout_s,
            faults.speculate_after,
        )
        self.coordinator = Coordinator(rules, say)
        self._store = open_store()
        self._running: dict[int, _Running] = {}
        self._causes: dict[int, Failure] = {}
        self._done: set[int] = set()
        self._woken = threading.Event()
        self.restarts = 0
        self.stopping: signal.Signals | None = None
        self._twice = False

    def run(self) -> None:
        """Run all groups until the job ends.

        Raises:
            StoppedError: if a signal ended the job without a last checkpoint.
            TrainingError: naming the failed rank, its message, and where to read more.
        """
        with self.coordinator, self._heeding_signals():
            try:
                for number in range(self._count):
                    self._start(number, resumes=number == 0)
                while self._running:
                    self._check_stop()
                    self._end_silent()
                    for number in list(self._running):
                        self._check(number)
                    self._restart_stranded()
                    self._woken.wait(MONITOR_S)
                    self._woken.clear()
            finally:
                for one in self._running.values():
                    one.context.close(signal.SIGKILL)

    def _start(self, number: int, *, resumes: bool) -> None:
        start = uuid.uuid4().hex
        host, port = self.coordinator.address
        ticket = Ticket(number, self._count, start, host, port, self._store.port, resumes)
        folder = self._endings / f"group-{number:05d}"
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        self.coordinator.coming(number, start)
        redirects = dict.fromkeys(range(1, self._ranks), Std.ALL)
        logs = self._logs / f"group-{number}"
        logs.mkdir(parents=True, exist_ok=True)
        context = start_processes(
            "rank",
            sys.executable,
            args=dict.fromkeys(range(self._ranks), ("-u", *self._command)),
            envs={rank: self._environment(ticket, rank, folder) for rank in range(self._ranks)},
            logs_specs=DefaultLogsSpecs(str(logs), redirects=redirects),
        )
        self._running[number] = _Running(context, resumes)

    def _environment(self, ticket: Ticket, rank: int, folder: Path) -> dict[str, str]:
        return ({PRINTS_VARIABLE: "yes"} if rank == 0 else {}) | {
            "RANK": str(rank),
            "WORLD_SIZE": str(self._ranks),
            "LOCAL_RANK": str(ticket.group * self._ranks + rank),
            "LOCAL_WORLD_SIZE": str(self._ranks),
            "MASTER_ADDR": ticket.host,
            "MASTER_PORT": str(ticket.store_port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": ticket.start,
            "TORCHELASTIC_RESTART_COUNT": str(self.restarts),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self._nproc))),
            ATTEMPT_VARIABLE: ticket.start,
            FOLDER_VARIABLE: str(folder),
            TICKET_VARIABLE: ticket.encoded(),
        }

    def _check(self, number: int) -> None:
        one = self._running[number]
        one.resumes = one.resumes and number not in self.coordinator.live
        ended = {rank: has_failed(pid) for rank, pid in one.context.pids().items() if has_ended(pid)}
        dead = {rank for rank, failed in ended.items() if failed}
        if dead:
            self.coordinator.lost(number)
            one.context.close(signal.SIGKILL)
        elif len(ended) < self._ranks:
            return  # torch would send SIGTERM to ranks beside one that dies just now, which stops the whole job
        result = one.context.wait(0)
        if result is None:
            return
        del self._running[number]
        if not result.is_failed():
            self._done.add(number)
            self._end_unneeded()
            return
        self.coordinator.lost(number)
        first = number * self._ranks
        failures = [
            failure_of(first + rank, found, {first + one for one in dead})
            for rank, found in sorted(result.failures.items())
        ]
        self._lost(number, one, failures)

    def _lost(self, number: int, one: _Running, failures: list[Failure]) -> None:
        """Restart a lost group, unless that cannot help."""
        if one.ended == _NOT_NEEDED:
            return
        if (leader := self.coordinator.ending_leader) not in (None, number) and not is_final(failures):
            self._say(f"replica group {number}: {one.ended or cause(failures)}\nthe job is ending without it")
            return
        root, before = cause(failures), self._causes.get(number)
        self._causes[number] = root
        said = f"replica group {number}: {one.ended or root}"
        if is_final(failures) or is_repeated(root, before):
            again = "" if is_final(failures) else "the same error came again in the same step: "
            raise TrainingError(f"{again}{said}\nthe job failed{self._spent()}; {self._where()}")
        if leader == number:
            raise TrainingError(
                f"{said}\nit was the group that writes the last checkpoint: start the same command again, to make what "
                f"is not in an earlier one; {self._where()}"
            )
        left = self.coordinator.live
        if self.restarts >= self._max_restarts:
            if not left or len(self._running) < self._least:
                raise TrainingError(f"{said}\nthe job failed{self._spent()}; {self._where()}")
            self._say(f"{said}\nno restarts are left: {_these(left)} without it")
            return
        self.restarts += 1
        resumes = not left and not any(other.resumes for other in self._running.values())
        what = f"{_these(left)} without it" if left else "no other replica group has a state"
        self._say(f"{said}\n{what}; it restarts alone (restart {self.restarts} of {self._max_restarts})")
        self._start(number, resumes=resumes)

    def _end_silent(self) -> None:
        try:
            ends = self.coordinator.take_ends()
        except RuntimeError as error:
            raise TrainingError(f"{error}; {self._where()}") from error
        for number, reason in ends.items():
            if (one := self._running.get(number)) is not None:
                one.ended = reason
                for pid in one.context.pids().values():
                    _kill(pid)

    def _restart_stranded(self) -> None:
        """If all groups wait for the state of a lost group, end one, so that it starts from the last checkpoint."""
        if any(one.resumes or one.ended for one in self._running.values()):
            return
        if self.coordinator.is_stranded(self._running):
            one = self._running[min(self._running)]
            one.ended = "the group that was sending its state is lost"
            for pid in one.context.pids().values():
                _kill(pid)

    def _end_unneeded(self) -> None:
        """End groups that were still coming back when the job ended."""
        live = self.coordinator.live
        for number, one in self._running.items():
            if number not in live and not one.ended and not self._is_leaving(number):
                one.ended = _NOT_NEEDED
                for pid in one.context.pids().values():
                    _kill(pid)

    def _is_leaving(self, number: int) -> bool:
        """Return whether a rank of the group has already reported its end."""
        return any(report["outcome"] != "running" for report in self._reports(number))

    def _reports(self, number: int) -> list[dict[str, Any]]:
        folder = self._endings / f"group-{number:05d}"
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("rank-*.json"))]

    def reports(self) -> list[dict[str, Any]]:
        """Return the reports of ranks whose groups took part until the end."""
        found = [report for number in sorted(self._done) for report in self._reports(number)]
        return [report for report in found if report["outcome"] != "not needed"]

    def _check_stop(self) -> None:
        """Pass on a first signal; on a second, or before training has begun, end the job at once."""
        if self.stopping is None:
            return
        if self._twice:
            raise StoppedError(self.stopping, "without a last checkpoint")
        if not self.coordinator.stop():
            raise StoppedError(self.stopping, "before training had begun: earlier checkpoints are unchanged")

    @contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        """Take a signal as a request to stop; restore the handlers at the end."""
        before = [(one, signal.signal(one, self._ask)) for one in _SIGNALS]
        try:
            yield
        finally:
            for one, handler in before:
                signal.signal(one, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._twice = self.stopping is not None
        self.stopping = signal.Signals(number)
        self._woken.set()
        if not self._twice:
            name = self.stopping.name
            self._say(f"{name}: the job stops after this step and a last checkpoint; once more to end it at once")

    def _spent(self) -> str:
        return f" after {self.restarts} restart{'s' * (self.restarts > 1)}" if self.restarts else ""

    def _where(self) -> str:
        return f"the ranks' outputs are in {self._logs}"


_NOT_NEEDED = "the job ended while this group was coming back"


def _these(groups: list[int]) -> str:
    names = ", ".join(map(str, groups))
    return f"replica group{'s' * (len(groups) > 1)} {names} go{'es' * (len(groups) == 1)} on"


def open_store() -> TCPStore:
    """Open a key-value store for processes of this machine; torch itself would listen on all its addresses."""
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        return TCPStore(HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it has just ended
