"""Hand in the reports of virtual participants whose tasks are done, and post the outcomes to the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from atoll.server.errors import ConflictError, TooLateError
from atoll.server.ingest.coordinator_api import Commit
from atoll.server.rounds import Effect, RoundKey, wants
from atoll.server.runs.active_runs import ActiveRun
from atoll.simulation.errors import ParticipantError, SimulationError, raised_at, raised_in
from atoll.simulation.resuming.participant_folders import ParticipantStates
from atoll.simulation.resuming.tasks_in_work import HandedIn, RoundInWork, after
from atoll.simulation.simulated_server import SimulatedServer
from atoll.simulation.tasks import Outcome, TaskRequest
from atoll.simulation.worker_pool import Key, WorkerPool
from atoll.wire.v1 import participation_pb2, transfer_pb2

log = logging.getLogger(__name__)

SHOWN = 3
"""Maximum number of logged failures of participants' code; a traceback is logged once for each code location."""
AGAIN = "again"
"""The file state after a repeated task, which no other task starts from."""
_SAID_CHARS = 300
_Posted = asyncio.Future[tuple[Effect, ...]]


@dataclass(frozen=True)
class FirstFailure:
    """The first failure of participants' code.

    Attributes:
        place: participant and round.
        error: the exception's type and the first line of its message.
    """

    place: str
    error: str

    def beside(self, reason: str) -> str:
        """A run's reason with this failure, unless the reason says it already: some texts are sent to the server."""
        message = self.error.partition(": ")[2]
        if message and message in reason:
            return reason
        return f"{reason}; the first failure: {self.place}: {self.error}"


class HandingIn:
    """Hands in the outcomes of tasks.

    Args:
        pool: runs the tasks.
        states: states of participants' files.
        strict: whether the first failure of participants' code ends the simulation.

    Attributes:
        server: the server; set before the first report.
        first_failure: the first failure of participants' code; None if there is none.
    """

    server: SimulatedServer

    def __init__(self, pool: WorkerPool, states: ParticipantStates, *, strict: bool) -> None:
        self._pool = pool
        self._states = states
        self._strict = strict
        self._failures = 0
        self._places = set[tuple[str, ...]]()
        self._delivering = 0
        self.first_failure: FirstFailure | None = None

    @property
    def at_rest(self) -> bool:
        """Whether no report of a running task is pending."""
        return self._delivering == 0

    def begun(self, key: Key, request: TaskRequest) -> TaskRequest:
        """The task as it begins now, with the current state of its participant's files."""
        return replace(request, before=self._states.of(request.participant), after=after(key))

    async def hand_in(self, live: RoundInWork, requests: Sequence[TaskRequest], active: ActiveRun) -> None:
        """Run the tasks whose reports are due now, and hand in the reports together.

        The set of reports is fixed before the first task runs, and the run takes them in their order. So neither the
        run nor participants' files depend on the number of processes.
        """
        self._delivering += 1
        key, done = live.opening.key, list[tuple[str, Outcome]]()
        wanted = [one for one in requests if wants(active.driver.state, RoundKey(*key[1:]), one.participant)]
        for request in wanted:
            begun = self.begun(key, request)
            node, outcome = await self._pool.outcome(key, begun)
            if outcome.traceback:
                self._note_failure(key, outcome)
            if outcome.keeps_files:
                self._states.move(outcome.participant, begun.after)
            if live.opening.keep and outcome.squares:
                live.handed_in[outcome.participant] = HandedIn(begun, _digest_of(outcome))
            done.append((node, outcome))
        for posted in list(self._post(key, done)):
            try:
                await posted
            except (ConflictError, TooLateError) as error:
                log.debug("a report for round %s is not taken: %s", key, error)
        self._delivering -= 1

    async def make_again(self, key: Key, handed: HandedIn) -> None:
        """Recompute an update that waits for a later round.

        Raises:
            SimulationError: if the participant's update differs from the earlier one.
        """
        name = handed.request.participant
        node, outcome = await self._pool.outcome(key, replace(handed.request, after=AGAIN))
        found = _digest_of(outcome)
        if found != handed.digest:
            raise SimulationError(
                f"participant {name} repeated its task of round {key[1] + 1}, whose update waits for a later "
                f"round, and its update differs ({found[:16] or outcome.failure}, before {handed.digest[:16]}); make "
                "it depend only on model, data and task.seed, or start again in another folder"
            )
        self.server.spool.note((*key, name), outcome.squares)
        self.server.nodes.moved[*key, name] = node

    def _note_failure(self, key: Key, outcome: Outcome) -> None:
        if self._strict:
            raise ParticipantError(outcome.participant, key[1], outcome.traceback)
        self._failures += 1
        if self._failures == 1:
            said = raised_in(outcome.traceback)[:_SAID_CHARS]
            self.first_failure = FirstFailure(f"participant {outcome.participant} in round {key[1] + 1}", said)
        if self._failures <= SHOWN:
            more = "; later failures are in the history only" if self._failures == SHOWN else ""
            log.warning(
                "participant %s failed in round %d%s%s", outcome.participant, key[1] + 1, more, self._shown(outcome)
            )

    def _shown(self, outcome: Outcome) -> str:
        """The traceback; for a repeated failure at the same location only the error."""
        place = raised_at(outcome.traceback)
        if place in self._places:
            return f": {raised_in(outcome.traceback)}"
        self._places.add(place)
        return f"\n{outcome.traceback.rstrip()}"

    def _post(self, key: Key, done: Sequence[tuple[str, Outcome]]) -> Iterator[_Posted]:
        """Post outcomes of tasks, so that the run stores them together."""
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


def _digest_of(outcome: Outcome) -> str:
    return transfer_pb2.ReportRequest.FromString(outcome.report).digest


def _reply(key: Key, outcome: Outcome) -> participation_pb2.TaskReply:
    verdicts = participation_pb2.TaskReply
    verdict = verdicts.VERDICT_DECLINED if outcome.declined else verdicts.VERDICT_FAILED
    at = participation_pb2.RoundKey(run=key[0], round=key[1], attempt=key[2])
    return participation_pb2.TaskReply(key=at, verdict=verdict, reason=outcome.declined or outcome.failure)
