"""What participants do when they are invited, in virtual time: work, and report when their time has come.

One coroutine plays each attempt at a round. It asks for outcomes in the order in which they arrive, so a round that
closes at its goal has the same members on every machine, and tasks whose reports could not count are never begun.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from atoll.server.aggregation import Grid
from atoll.server.errors import ConflictError, TooLateError
from atoll.server.ingest.coordinator_api import Commit
from atoll.server.ingest.node import SumKey
from atoll.server.rounds import Effect, LateMode, Patience, Phase, RoundKey, RoundKind, RunState, wants
from atoll.server.runs.coordinator import ActiveRun
from atoll.server.runs.instructions import Instruction, Invitation
from atoll.server.runs.sessions import Introduction
from atoll.simulation.attendance import Attendance, Attended
from atoll.simulation.behaviour import Behaviour
from atoll.simulation.errors import ParticipantError, raised_in
from atoll.simulation.population import Population
from atoll.simulation.simulated_server import SimulatedServer
from atoll.simulation.tasks import Opening, Outcome, RoundOverError, TaskRequest
from atoll.simulation.virtual_time import virtual_loop
from atoll.simulation.worker_pool import Key, WorkerPool
from atoll.wire.v1 import participation_pb2, transfer_pb2

log = logging.getLogger(__name__)

BATCH = 256
"""Reports after which the run's state is looked at anew."""
TOGETHER = 32
"""Reports that are handed to the run together."""
SHOWN = 3
"""Failures of participants' code that are logged with their traceback."""
_SAID_CHARS = 300
_Posted = asyncio.Future[tuple[Effect, ...]]


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    """A report that comes, if its task succeeds, or a participant that drops out; ordered by the virtual second."""

    at: float
    number: int
    request: TaskRequest = field(compare=False)
    reports: bool = field(default=True, compare=False)


@dataclass
class _Called:
    """The members of an attempt that are invited."""

    shared: bytes
    requests: list[TaskRequest] = field(default_factory=list)


class VirtualParticipants:
    """Plays every round of a simulation.

    Args:
        pool: does the tasks.
        population: who there is.
        behaviour: how they behave in virtual time.
        strict: whether the first failure of participants' code ends the simulation.

    Attributes:
        server: the server; set before the first invitation.
        attendance: who is connected.
        failed: has the error that ends the simulation, if there is one.
        first_failure: participant, round and exception of the first failure of participants' code; empty without one.
    """

    server: SimulatedServer

    def __init__(self, pool: WorkerPool, population: Population, behaviour: Behaviour, *, strict: bool) -> None:
        self._pool = pool
        self._population = population
        self._behaviour = behaviour
        self.attendance = Attendance(population, behaviour)
        self._strict = strict
        self._called: dict[Key, _Called] = {}
        self._latest: tuple[bytes, Key] = (b"", ("", 0, 0))
        self._failures = 0
        self.first_failure = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy_until: dict[str, float] = {}
        self._delivering = 0
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def enter(self, introductions: Mapping[str, Introduction]) -> None:
        """Connect the participants, each when it is there."""
        self.attendance.sessions = self.server.sessions
        self.attendance.begin(introductions)
        self._begin(self.attendance.come_and_go(), "presence")

    def go_on(self, introductions: Mapping[str, Introduction], at: Attended) -> None:
        """Connect those who were connected at an instant, which is now, and the others when they are there."""
        self.attendance.sessions = self.server.sessions
        self.attendance.go_on(introductions, at)
        self._begin(self.attendance.come_and_go(), "presence")

    @property
    def at_rest(self) -> bool:
        """Whether no task is in work whose report is still to be handed in."""
        return self._delivering == 0

    def fail(self, error: Exception) -> None:
        """End the simulation with an error, unless there was one before."""
        if not self.failed.done():
            self.failed.set_exception(error)

    def tell(self, participant: str, instruction: Instruction) -> None:
        """What a participant is told over its session."""
        if not isinstance(instruction, Invitation):
            return
        key = self._key_of(instruction.shared)
        called = self._called.get(key)
        if called is None:
            called = self._called[key] = _Called(instruction.shared)
            self._begin(self._play(key), f"round {key[1]}.{key[2]}")
        called.requests.append(TaskRequest(participant, self._population.seed_of(participant), instruction.own))

    async def close(self) -> None:
        """Break off what is still being played."""
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
        """One attempt at a round, from its invitations to the last report that may count."""
        called = self._called.pop(key)
        active = self.server.coordinator.active(key[0])
        if active is None or not _is_open(active.driver.state, key):
            return
        await self._pool.open(_opening(key, called.shared, active, self.server))
        arrivals = self._arrivals(key, called.requests, carries=_carries(active.driver.state))
        self._expect(key, arrivals, active)
        while arrivals and _wanted(active, key, arrivals):
            await virtual_loop().until(arrivals[0].at)
            await virtual_loop().rest()  # else the order of what happens at this moment would depend on the workers
            wanted = _wanted(active, key, arrivals)  # the round may have closed meanwhile
            batch = [one for one in arrivals[: min(wanted, BATCH)] if one.at == arrivals[0].at]
            self._delivering += 1
            await self._deliver(key, batch, active)
            self._delivering -= 1
            del arrivals[: len(batch)]

    def _arrivals(self, key: Key, requests: Sequence[TaskRequest], *, carries: bool) -> list[Arrival]:
        """When each member reports or drops out; without those that never do."""
        now, found = asyncio.get_running_loop().time(), []
        for request in requests:
            name, number = request.participant, self._population.number_of(request.participant)
            start = max(now, self._busy_until.get(name, 0.0))
            task_s = self._behaviour.task_s(number, key[1])
            share = self._behaviour.leaves_after(number, key[1], key[2])
            if share is not None:
                found.append(Arrival(start + share * task_s, number, request, reports=False))
                continue
            at = self.attendance.presence.next_there(number, start + task_s)
            if carries:
                self._busy_until[name] = at
            if at < math.inf:
                found.append(Arrival(at, number, request))
        return sorted(found)

    def _expect(self, key: Key, arrivals: Sequence[Arrival], active: ActiveRun) -> None:
        """Tell the pool of the tasks whose reports should count, if none fails."""
        state = active.driver.state
        if state.round is None:
            return
        closes_at = asyncio.get_running_loop().time() + state.round.window_s
        timely = [one for one in arrivals if one.at <= closes_at and one.reports]
        self._pool.expect(key, [one.request for one in timely[: _wanted(active, key, timely)]])

    async def _deliver(self, key: Key, batch: Sequence[Arrival], active: ActiveRun) -> None:
        """Hand in the reports of a batch; the run takes the first while later ones are still made.

        The first may end the round, if too many of them are failures.
        """
        done, posted = list[tuple[str, Outcome]](), list[_Posted]()
        for arrival in batch:
            name = arrival.request.participant
            if not arrival.reports:
                self.attendance.drop_out(arrival.number)
                continue
            if not wants(active.driver.state, RoundKey(*key[1:]), name):
                continue
            try:
                node, outcome = await self._pool.outcome(key, arrival.request)
            except RoundOverError:
                continue
            if outcome.traceback:
                self._note_failure(key, outcome)
            done.append((node, outcome))
            if len(done) == TOGETHER:
                posted += self._post(key, done)
                done = []
        posted += self._post(key, done)
        for one in posted:
            try:
                await one
            except (ConflictError, TooLateError) as error:
                log.debug("a report for round %s is not taken: %s", key, error)

    def _note_failure(self, key: Key, outcome: Outcome) -> None:
        if self._strict:
            raise ParticipantError(outcome.participant, key[1], outcome.traceback)
        self._failures += 1
        if self._failures == 1:
            said = raised_in(outcome.traceback)[:_SAID_CHARS]
            self.first_failure = f"participant {outcome.participant} in round {key[1] + 1}: {said}"
        if self._failures <= SHOWN:
            more = "; later failures are in the history only" if self._failures == SHOWN else ""
            text = outcome.traceback.rstrip()
            log.warning("participant %s failed in round %d%s\n%s", outcome.participant, key[1] + 1, more, text)

    def _post(self, key: Key, done: Iterable[tuple[str, Outcome]]) -> Iterator[_Posted]:
        """Post what became of tasks, so that the run stores it together."""
        coordinator = self.server.coordinator
        for node, outcome in done:
            name = outcome.participant
            if not outcome.report:
                posted = coordinator.post_reply(name, _reply(key, outcome))
            else:
                report = transfer_pb2.ReportRequest.FromString(outcome.report)
                if outcome.squares:
                    self.server.spool.note((*key, name), outcome.squares)
                commit = Commit(name, report, node, outcome.payload_bytes, outcome.norm, outcome.rejection)
                posted = coordinator.post_report(commit)
            if posted is not None:
                yield posted


def _reply(key: Key, outcome: Outcome) -> participation_pb2.TaskReply:
    verdicts = participation_pb2.TaskReply
    verdict = verdicts.VERDICT_DECLINED if outcome.declined else verdicts.VERDICT_FAILED
    at = participation_pb2.RoundKey(run=key[0], round=key[1], attempt=key[2])
    return participation_pb2.TaskReply(key=at, verdict=verdict, reason=outcome.declined or outcome.failure)


def _is_open(state: RunState, key: Key) -> bool:
    return state.round is not None and state.round.key == RoundKey(*key[1:]) and state.round.phase is Phase.OPEN


def _wanted(active: ActiveRun, key: Key, arrivals: Sequence[Arrival]) -> int:
    """How many of these reports may count, if all of them succeed."""
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
