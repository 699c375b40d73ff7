"""Virtual participants, which work and report after an invitation, in virtual time.

One coroutine plays each attempt at a round. It requests outcomes in order of arrival. So a round that closes at its
goal has the same members on every machine, and tasks whose reports cannot count never start.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from atoll.server.aggregation import Grid
from atoll.server.ingest.node import SumKey
from atoll.server.rounds import LateMode, Patience, Phase, RoundKey, RoundKind, RunState, planned_round
from atoll.server.runs.active_runs import ActiveRun
from atoll.server.runs.instructions import Instruction, Invitation
from atoll.server.runs.session import Introduction
from atoll.simulation.attendance import Attendance, Attended
from atoll.simulation.behaviour import Behaviour
from atoll.simulation.handing_in import HandingIn
from atoll.simulation.population import Population
from atoll.simulation.resuming.participant_folders import ParticipantStates
from atoll.simulation.resuming.tasks_in_work import RoundInWork, TasksInWork
from atoll.simulation.simulated_server import SimulatedServer
from atoll.simulation.tasks import Arrival, Opening, TaskRequest
from atoll.simulation.virtual_time import virtual_loop
from atoll.simulation.worker_pool import Key, WorkerPool
from atoll.wire.v1 import participation_pb2

BATCH = 128
"""Maximum number of reports of one instant handed in together; then the run's state is checked again."""


@dataclass
class _Called:
    """The invited members of an attempt."""

    shared: bytes
    requests: list[TaskRequest] = field(default_factory=list)


class VirtualParticipants:
    """Plays every round of a simulation.

    Args:
        pool: runs the tasks.
        population: all participants.
        behaviour: how they behave in virtual time.
        states: states of participants' files.
        strict: whether the first failure of participants' code ends the simulation.

    Attributes:
        attendance: the connected participants.
        reports: hands in the outcomes of tasks.
        failed: the error that ends the simulation, if any.
    """

    _server: SimulatedServer

    def __init__(
        self,
        pool: WorkerPool,
        population: Population,
        behaviour: Behaviour,
        states: ParticipantStates,
        *,
        strict: bool,
    ) -> None:
        self._pool = pool
        self._population = population
        self._behaviour = behaviour
        self._states = states
        self.attendance = Attendance(population, behaviour)
        self.reports = HandingIn(pool, states, strict=strict)
        self._called: dict[Key, _Called] = {}
        self._latest: tuple[bytes, Key] = (b"", ("", 0, 0))
        self._tasks: set[asyncio.Task[None]] = set()
        self._rounds: dict[Key, RoundInWork] = {}
        self._busy_until: dict[str, float] = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def serve(self, server: SimulatedServer) -> None:
        """Take part in this server's rounds; call before the first invitation."""
        self._server = self.reports.server = server
        self.attendance.sessions = server.sessions

    def enter(self, introductions: Mapping[str, Introduction]) -> None:
        """Connect the participants, each when it is available."""
        self.attendance.begin(introductions)
        self._begin(self.attendance.come_and_go(), "presence")

    async def go_on(self, introductions: Mapping[str, Introduction], at: Attended, tasks: TasksInWork) -> None:
        """Restore a recorded instant, which is now: reconnect participants and recompute waiting updates.

        Raises:
            SimulationError: if a recomputed update differs from the earlier one.
        """
        self.attendance.go_on(introductions, at)
        self._begin(self.attendance.come_and_go(), "presence")
        self._states.go_on(tasks.states)
        self._busy_until = dict(tasks.busy_until)
        for one in tasks.rounds:
            self._rounds[one.opening.key] = one
            await self._pool.open(one.opening)
            for handed in one.handed_in.values():
                await self.reports.make_again(one.opening.key, handed)

    def go_on_reporting(self) -> None:
        """Continue the tasks that were running at the instant of ``go_on``; the run already accepts reports."""
        for key, one in self._rounds.items():
            active = self._server.coordinator.active(key[0])
            if one.arrivals and active is not None:
                self._begin(self._report(one, active), f"round {key[1]}.{key[2]}")

    @property
    def at_rest(self) -> bool:
        """Whether no running task's report is due now."""
        return self.reports.at_rest

    @property
    def has_failed(self) -> bool:
        """Whether the simulation ends with an error."""
        return self.failed.done()

    def in_work(self, state: RunState) -> TasksInWork:
        """Participants' running tasks, as the run needs them in this state."""
        carried = () if state.status.ended else (*state.carried, *(state.round.carried if state.round else ()))
        waiting = {(one.update.key.round, one.update.key.attempt, one.update.participant) for one in carried}
        rounds = [one.only(waiting) for _, one in sorted(self._rounds.items()) if one.opening.keep]
        now = asyncio.get_running_loop().time()
        busy = {name: second for name, second in self._busy_until.items() if second > now}
        return TasksInWork(tuple(one for one in rounds if one.arrivals or one.handed_in), busy, self._states.now())

    def committed(self, tasks: TasksInWork) -> None:
        """Note that a commit with these tasks was made."""
        self._states.committed(tasks.needed_states())

    def forget(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """Forget the updates of these rounds, except those of the given (round, attempt, participant)."""
        self._pool.forget(run, through, keep)
        for key, one in list(self._rounds.items()):
            if key[0] == run and key[1:] <= through:
                one.handed_in = one.only(keep).handed_in
                self._end(one)

    def fail(self, error: Exception) -> None:
        """End the simulation with an error, unless there was one before."""
        if not self.failed.done():
            self.failed.set_exception(error)

    def deliver(self, participant: str, instruction: Instruction) -> None:
        """Handle an instruction to a participant from its session."""
        if not isinstance(instruction, Invitation):
            return
        key = self._key_of(instruction.shared)
        called = self._called.get(key)
        if called is None:
            called = self._called[key] = _Called(instruction.shared)
            self._begin(self._play(key), f"round {key[1]}.{key[2]}")
        called.requests.append(TaskRequest(participant, self._population.seed_of(participant), instruction.own))

    async def close(self) -> None:
        """Cancel the running attempts."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _key_of(self, shared: bytes) -> Key:
        known, key = self._latest
        if known is not shared:
            found = participation_pb2.Participate.FromString(shared).key
            key = (found.run, found.round, found.attempt)
            self._latest = shared, key
        return key

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.fail(error)

    async def _play(self, key: Key) -> None:
        """One attempt at a round, from its invitations on."""
        called = self._called.pop(key)
        active = self._server.coordinator.active(key[0])
        if active is None or not _is_open(active.driver.state, key):
            return
        opening = _opening(key, called.shared, active, self._server)
        await self._pool.open(opening)
        state = active.driver.state
        planned = key[1] if state.round is None else planned_round(state.policy, state.round)
        live = RoundInWork(opening, self._arrivals(key, called.requests, planned, carries=_carries(state)))
        self._expect(live, active)
        self._rounds[key] = live
        await self._report(live, active)

    async def _report(self, live: RoundInWork, active: ActiveRun) -> None:
        """Hand in an attempt's reports, each at its time, up to the last that may count."""
        key, arrivals = live.opening.key, live.arrivals
        while arrivals and _wanted(active, key, arrivals):
            await virtual_loop().until(arrivals[0].at)
            await virtual_loop().rest(key[1:])  # else the order of events would depend on the workers
            wanted = _wanted(active, key, arrivals)  # the round may have closed meanwhile
            batch = [one for one in arrivals[: min(wanted, BATCH)] if one.at == arrivals[0].at]
            for one in batch:
                if not one.reports:
                    self.attendance.drop_out(one.number)
            await self.reports.hand_in(live, [one.request for one in batch if one.reports], active)
            del arrivals[: len(batch)]
        arrivals.clear()
        self._end(live)

    def _end(self, live: RoundInWork) -> None:
        """Forget an attempt once none of its reports can count."""
        if not live.arrivals and not live.handed_in:
            self._rounds.pop(live.opening.key, None)

    def _arrivals(self, key: Key, requests: Sequence[TaskRequest], planned: int, *, carries: bool) -> list[Arrival]:
        """The time at which each member reports or drops out, without members that do neither.

        Behaviour depends on the round's ``planned`` number, as the draw does.
        """
        now, found = asyncio.get_running_loop().time(), []
        for request in requests:
            name, number = request.participant, self._population.number_of(request.participant)
            start = max(now, self._busy_until.get(name, 0.0))
            task_s = self._behaviour.task_s(number, planned)
            share = self._behaviour.leaves_after(number, planned, key[2])
            if share is not None:
                found.append(Arrival(start + share * task_s, number, request, reports=False))
                continue
            at = self.attendance.presence.next_there(number, start + task_s)
            if carries:
                self._busy_until[name] = at
            if at < math.inf:
                found.append(Arrival(at, number, request))
        return sorted(found)

    def _expect(self, live: RoundInWork, active: ActiveRun) -> None:
        """Announce to the pool the tasks whose reports should count if none fails.

        A task whose participant is busy is left out, because it starts from the other task's state.
        """
        state, key = active.driver.state, live.opening.key
        if state.round is None:
            return
        closes_at = asyncio.get_running_loop().time() + state.round.window_s
        others = self._rounds.values() if live.opening.keep else ()
        busy = {at.request.participant for one in others for at in one.arrivals}
        timely = [at for at in live.arrivals if at.at <= closes_at and at.reports]
        expected = timely[: _wanted(active, key, timely)]
        free = [at.request for at in expected if at.request.participant not in busy]
        self._pool.expect(key, [self.reports.begun(key, request) for request in free])


def _is_open(state: RunState, key: Key) -> bool:
    return state.round is not None and state.round.key == RoundKey(*key[1:]) and state.round.phase is Phase.OPEN


def _wanted(active: ActiveRun, key: Key, arrivals: Sequence[Arrival]) -> int:
    """The number of these reports that may count if all succeed."""
    state = active.driver.state
    straggler, live = state.policy.straggler, state.round
    if live is not None and _is_open(state, key):
        if straggler.patience is not Patience.GOAL:
            return len(arrivals)
        return min(len(arrivals), straggler.cohort_size - live.counted)
    return len(arrivals) if _carries(state) and not state.status.ended else 0


def _carries(state: RunState) -> bool:
    """Whether late reports count in a later round."""
    return state.policy.straggler.late.mode is LateMode.CARRY


def _opening(key: Key, shared: bytes, active: ActiveRun, server: SimulatedServer) -> Opening:
    state = active.driver.state
    live = state.round
    sum_key = None
    if live is not None and live.kind is RoundKind.TRAIN and live.grid is not None:
        part = active.fragments.of_round(live.version)
        sum_key = SumKey(*key, part.size, Grid(**asdict(live.grid)), part.offset)
    return Opening(key, shared, server.model_path(state.model), sum_key, state.policy, _carries(state))
