"""``torchrun``'s agent in this process: starts the ranks of a node, and restarts all of them when one is lost.

It reports what happened in one line, does not wait half a minute for ranks that hang, does not restart a job that
cannot work, and turns the first SIGTERM or SIGINT into a stop with a last checkpoint.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from atoll.datacenter.elastic.failures import Failure, cause, is_final, is_repeated
from atoll.datacenter.mesh.world import ATTEMPT_VARIABLE

GRACE_S = 5
"""Seconds that ranks get to end on their own after another is lost; they cannot save anything without it."""
EXIT_BARRIER_S = 60.0
"""Seconds that an agent whose ranks have finished waits for the other agents."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Agent(LocalElasticAgent):
    """Runs the ranks of this node.

    Args:
        spec: specification of the ranks.
        logs: folder of outputs; local rank 0 prints to this process's output, the other ranks to files in that folder.
        say: called with a line about each event.
        check: raises if the job does not fit a number of ranks.

    Attributes:
        failures: failures of the last attempt that failed.
        restarts: number of restarts.
        stopping: the signal that asked for a stop; None if none did.
    """

    def __init__(
        self, spec: WorkerSpec, logs: Path, say: Callable[[str], None], check: Callable[[int], object]
    ) -> None:
        redirects = dict.fromkeys(range(1, spec.local_world_size), Std.ALL)
        super().__init__(spec, DefaultLogsSpecs(str(logs), redirects=redirects), exit_barrier_timeout=EXIT_BARRIER_S)
        self._say, self._check = say, check
        self.failures: list[Failure] = []
        self.restarts = -1
        self._cause: Failure | None = None
        self._world_size = 0
        self.stopping: signal.Signals | None = None
        self._at_once: signal.Signals | None = None
        """The second signal; later ones change nothing."""
        self._is_starting = False
        """Whether torch is starting ranks, of which this agent does not know yet."""
        self._unsignalled: list[int] = []
        """Processes of ranks that a stop has not been passed on to."""

    def _rendezvous(self, worker_group: WorkerGroup) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]  # the parent's decorator hides its type
        """Meet the other nodes, with a new store for the ranks each time.

        torch 2.13 keeps the first store: restarted ranks would find keys of their predecessors, and a node that joins
        later would wait for ever.
        """
        handler: Any = worker_group.spec.rdzv_handler
        handler._bootstrap_store_info = None  # noqa: SLF001  # there is no public way
        parent: Any = super()
        parent._rendezvous(worker_group)  # noqa: SLF001  # super()'s

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]  # as above
        """Start the ranks of an attempt, unless too few nodes have met, or a stop was requested."""
        if self.stopping is not None:
            raise SignalException("stopped before ranks were started", self.stopping)
        world_size = worker_group.workers[0].world_size
        self._check(world_size)
        if self.restarts >= 0 and world_size != self._world_size:
            self._say(f"the job continues with {world_size} ranks instead of {self._world_size}")
        self._world_size = world_size
        self.restarts += 1
        os.environ[ATTEMPT_VARIABLE] = _name_attempt(worker_group)
        for one in _SIGNALS:
            signal.signal(one, self._ask)
        parent: Any = super()
        self._is_starting = True
        try:
            started: dict[int, Any] = parent._start_workers(worker_group)  # noqa: SLF001  # super()'s
        finally:
            self._is_starting = False
        if self._at_once is not None:
            raise _ended(self._at_once)
        self._unsignalled = list(started.values())
        self._pass_on()
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:  # pyright: ignore[reportIncompatibleVariableOverride]  # as above
        """Check the ranks once; if one has failed, give the others a moment to end, then end the attempt."""
        dead = {worker.global_rank for worker in worker_group.workers if has_failed(worker.id)}
        if dead and self._pcontext is not None:
            self._pcontext.close(signal.SIGTERM, timeout=GRACE_S)
        parent: Any = super()
        result: RunResult = parent._monitor_workers(worker_group)  # noqa: SLF001  # super()'s
        if result.state is WorkerState.FAILED:
            self.failures = [failure_of(rank, found, dead) for rank, found in sorted(result.failures.items())]
            self._decide()
        return result

    def _decide(self) -> None:
        """Decide whether the parent class restarts the ranks, and report why."""
        root, before = cause(self.failures), self._cause
        self._cause = root
        if self.stopping is not None or is_final(self.failures):
            self._remaining_restarts = 0
        elif self._remaining_restarts and is_repeated(root, before):
            self._remaining_restarts = 0
            self._say("the same error came again in the same step: the job is not restarted")
        if self._remaining_restarts:
            number = self.restarts + 1
            total = self.restarts + self._remaining_restarts
            self._say(f"{root}\nall ranks restart from the last checkpoint (restart {number} of {total})")

    def _ask(self, number: int, frame: FrameType | None) -> None:
        """Stop after the step on the first signal, at once on the second.

        While torch starts ranks, the second signal waits until all are started: an exception would leave ranks behind.
        Ending ranks takes seconds, and an exception then would leave ranks behind too, so a third signal is ignored.
        """
        del frame
        asked = signal.Signals(number)
        if self._at_once is not None:
            return
        if self.stopping is not None:
            self._at_once = asked
            if self._is_starting:
                return
            raise _ended(asked)
        self.stopping = asked
        self._say(f"{asked.name}: the job stops after this step and a last checkpoint; once more to end it at once")
        self._pass_on()

    def _pass_on(self) -> None:
        """Ask each rank once if a stop was requested, which may have been while the ranks were started."""
        while self.stopping is not None and self._unsignalled:
            _signal(self._unsignalled.pop())


def _name_attempt(worker_group: WorkerGroup) -> str:
    """Publish a name chosen by the first node; the store belongs to this meeting only."""
    group: Any = worker_group  # torch sets these attributes without declaring types
    if group.group_rank == 0:
        group.store.set("atoll/attempt", uuid.uuid4().hex)
    return str(group.store.get("atoll/attempt").decode())


def _ended(asked: signal.Signals) -> SignalException:
    return SignalException(f"a second signal, {asked.name}: ranks are ended at once", asked)


def _signal(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return  # it has just ended


def has_failed(pid: Any) -> bool:
    """Return whether a child has ended with an error; it can still be waited for."""
    if not isinstance(pid, int):
        return False
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return ended is not None and ended.si_status != 0


def has_ended(pid: int) -> bool:
    """Return whether a child has ended, whether or not it was waited for."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def failure_of(rank: int, found: ProcessFailure, first: set[int]) -> Failure:
    """Describe a failed rank, with the message from its file, if it left one."""
    data: dict[str, Any] = found.error_file_data
    message = data.get("message")
    written = message if isinstance(message, dict) else {}
    trace = str(written.get("extraInfo", {}).get("py_callstack", ""))
    return Failure(rank, found.pid, found.exitcode, str(written.get("message", "")), trace, rank in first)
