"""One simulation's run, from its start or its last commit to its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.operator.history import History
from atoll.server.control import RunDetail
from atoll.server.errors import ServerError
from atoll.server.jobs import JobSpec, trained_first
from atoll.server.runs.drawing import looks_back
from atoll.server.runs.evaluators import Evaluator
from atoll.server.runs.session import Introduction
from atoll.server.stores import BlobStore, runs
from atoll.server.stores.blob_place import BLOBS_FOLDER
from atoll.server.stores.directory_blobs import DirectoryBlobStore
from atoll.settings import to_toml
from atoll.simulation.errors import RunFailedError, SetupError, SimulationError
from atoll.simulation.evaluating import Evaluate, evaluator_of
from atoll.simulation.initial import Initial
from atoll.simulation.population import Population
from atoll.simulation.progress import Progress
from atoll.simulation.result import Result, detail_from, read, weights_of
from atoll.simulation.resuming.boundaries import Boundaries
from atoll.simulation.resuming.kept_state import KeptState, put_begin
from atoll.simulation.resuming.participant_folders import ParticipantFolders
from atoll.simulation.resuming.results_folder import PARTICIPANTS_FOLDER, ResultsFolder
from atoll.simulation.simulated_server import SimulatedServer
from atoll.simulation.tasks import Facts
from atoll.simulation.virtual_participants import VirtualParticipants
from atoll.simulation.virtual_time import VirtualLoop
from atoll.simulation.worker_pool import WorkerPool
from atoll.wire.encoding import Encoding

STARTS_AT = 1_704_067_200.0
"""Epoch seconds at virtual second 0: Monday, 2024-01-01, 00:00 UTC."""
STUCK_S = 366 * 86_400.0
"""Virtual seconds without any change after which the run is considered stuck."""
_ENCODINGS = frozenset(Encoding)
Examples = int | Sequence[int]


@dataclass(frozen=True)
class Plan:
    """The settings of a run, and the location of its state.

    Attributes:
        folder: stores the state.
        job: the job.
        model: the initial model.
        population: all participants.
        evaluate: evaluates released models.
        examples: declared by each participant; None: each is asked.
        results: the folder if a later call can resume from it; None: it is temporary.
        asked: the request, which a later call must repeat.
    """

    folder: Path
    job: JobSpec
    model: Initial
    population: Population
    evaluate: Evaluate | None
    examples: Examples | None
    results: ResultsFolder | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def participant_folders(self) -> ParticipantFolders:
        """The folders of participants that keep files."""
        return ParticipantFolders(self.folder / PARTICIPANTS_FOLDER)


class Simulation:
    """One run on a virtual loop.

    Args:
        plan: of the run.
        loop: the virtual time.
        pool: runs the tasks.
        participants: take part in the rounds.
        progress: called with the number of released and of all rounds, after each change.
    """

    def __init__(
        self,
        plan: Plan,
        loop: VirtualLoop,
        pool: WorkerPool,
        participants: VirtualParticipants,
        progress: Progress | None,
    ) -> None:
        self._plan = plan
        self._loop = loop
        self._pool = pool
        self._participants = participants
        self._progress = progress
        self._kept = None if plan.results is None else plan.results.kept
        self._boundaries: Boundaries | None = None
        if plan.results is not None:
            before = None if self._kept is None else self._kept.boundary
            self._boundaries = Boundaries(participants, before, self._cannot_commit)

    async def run(self) -> Result:
        """Run to the end. Raises as ``Federation.run``."""
        try:
            return await self._run()
        except ServerError as error:
            raise SetupError(str(error.detail)) from error
        except RunFailedError as error:
            first = self._participants.reports.first_failure
            if first is None or self._plan.results is not None:  # a later call would know only the reason
                raise
            raise RunFailedError(first.beside(str(error))) from error
        finally:
            await self._pool.close()

    async def _run(self) -> Result:
        began = time.perf_counter()
        if self._kept is not None:
            self._loop.pass_to(self._kept.boundary.second)
        server = SimulatedServer.open(
            self._plan.folder,
            clock=lambda: STARTS_AT + self._loop.time(),
            deliver=self._participants.deliver,
            forget=self._participants.forget,
            evaluators=self._evaluators(),
            learns=looks_back(self._plan.job),
            boundaries=self._boundaries,
        )
        self._participants.serve(server)
        try:
            for node in self._pool.nodes:
                server.services.nodes.add(node)
            run_id = await (self._begin(server) if self._kept is None else self._go_on(server))
            await self._ended(server, run_id)
            detail = await server.services.reader.run(lambda connection: detail_from(connection, run_id, members=False))
            seconds = time.perf_counter() - began
            if self._boundaries is not None:
                self._boundaries.writer.commit()  # after the clean-up at the run's end
                seconds = self._boundaries.seconds
            return _result(self._plan, server.services.blobs, detail, seconds, self._loop.time())
        finally:
            await self._participants.close()
            await server.close()

    def _evaluators(self) -> dict[str, Evaluator]:
        name, evaluate = self._plan.job.evaluation.server, self._plan.evaluate
        return {} if evaluate is None or name is None else {name: evaluator_of(evaluate, self._participants.fail)}

    async def _begin(self, server: SimulatedServer) -> str:
        """Start the run; return its id."""
        plan = self._plan
        await server.coordinator.start()
        await server.enrol(plan.population.names)
        facts = await self._facts()
        self._participants.enter(_introductions(facts))
        if self._boundaries is not None:
            await server.services.writer.run(put_begin, plan.asked, [facts[name] for name in plan.population.names])
        with server.services.blobs.create(expected_bytes=plan.model.layout.size_bytes) as writer:
            for piece in plan.model.pieces():
                writer.write(piece)
            blob = writer.commit().name
        submitted = await server.coordinator.submit(
            job_toml=to_toml(plan.job).encode(),
            file_name="job.toml",
            layout=plan.model.layout,
            initial_blob=blob,
            operator="simulation",
        )
        return submitted.run

    async def _go_on(self, server: SimulatedServer) -> str:
        """Resume the run at its last commit; return its id."""
        kept, boundaries = self._kept, self._boundaries
        if kept is None or boundaries is None:
            raise SimulationError("there is no commit to resume from")
        boundaries.hold(kept.boundary.run, kept.tasks)
        facts = dict(zip(self._plan.population.names, kept.facts, strict=True))
        await self._participants.go_on(_introductions(facts), kept.boundary.attended, kept.tasks)
        await server.coordinator.start()
        self._participants.go_on_reporting()
        if self._plan.results is not None and self._plan.results.extends:
            await self._extend(server, kept)
        return kept.boundary.run

    async def _extend(self, server: SimulatedServer, kept: KeptState) -> None:
        """Extend a run that has ended; the next commit has the extension with the current request."""
        await server.services.writer.run(put_begin, self._plan.asked, kept.facts)
        run = await server.services.reader.run(runs.get, kept.boundary.run)
        await server.coordinator.extend(run.id, self._plan.job.job.rounds - run.rounds_released)

    async def _facts(self) -> dict[str, Facts]:
        population, examples = self._plan.population, self._plan.examples
        if examples is None:
            return await self._pool.facts(dict(population.seeds()))
        first = population.names[0]
        shown = (await self._pool.facts({first: population.seed_of(first)}))[first]
        counts = [examples] * len(population) if isinstance(examples, int) else examples
        return {
            name: Facts(int(count), shown.can_evaluate) for name, count in zip(population.names, counts, strict=True)
        }

    async def _ended(self, server: SimulatedServer, run_id: str) -> None:
        """Wait until the run has ended or pauses.

        Raises:
            RunFailedError: if it is broken.
        """
        active = server.coordinator.active(run_id)
        while active is not None:
            state, changed = active.driver.state, active.driver.changed
            if self._progress is not None:
                self._progress(state.version, state.policy.rounds)
            if active.driver.broken is not None:
                raise RunFailedError(str(active.driver.broken.detail))
            if state.status.ended or state.status == "paused":
                await active.driver.stop()  # its clean-up is part of the simulation's
                return
            waiting = asyncio.ensure_future(changed.wait())
            either: set[asyncio.Future[Any]] = {waiting, self._participants.failed}
            await asyncio.wait(either, timeout=STUCK_S, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if changed is active.driver.changed and not self._participants.failed.done():
                raise RunFailedError(
                    f"the run waits for {STUCK_S / 86_400:.0f} virtual days: {len(server.sessions)} participants are "
                    f"connected, and nothing changes any more ({active.performer.trouble or state.status}); check the "
                    "availability of participants and cohort.min_available"
                )
            if self._participants.failed.done():
                self._participants.failed.result()

    def _cannot_commit(self, error: Exception) -> None:
        said = str(error.detail) if isinstance(error, ServerError) else str(error)
        self._participants.fail(SimulationError(f"folder = {self._plan.folder} cannot be written: {said}"))


def finished(plan: Plan) -> Result | None:
    """The result of a simulation that has ended in its folder; None if it has not, or if more rounds are requested.

    Raises:
        RunFailedError: if the run failed.
    """
    kept = None if plan.results is None else plan.results.kept
    if kept is None or not kept.boundary.ended:
        return None
    at = kept.boundary
    detail = read(plan.folder, lambda connection: detail_from(connection, at.run, members=False))
    if plan.results is not None and plan.results.extends and detail.run.status == "finished":
        return None
    blobs = DirectoryBlobStore(plan.folder / BLOBS_FOLDER)
    try:
        return _result(plan, blobs, detail, at.seconds, at.second)
    finally:
        blobs.close()


def _introductions(facts: Mapping[str, Facts]) -> dict[str, Introduction]:
    made = {one: Introduction(one.examples, _ENCODINGS, one.can_evaluate) for one in set(facts.values())}
    return {name: made[one] for name, one in facts.items()}


def _result(plan: Plan, blobs: BlobStore, detail: RunDetail, seconds: float, virtual_s: float) -> Result:
    run, layout = detail.run, trained_first(plan.job, plan.model.layout)
    if run.status in ("failed", "cancelled"):
        raise RunFailedError(f"the run has {run.status}: {run.reason}")
    return Result(
        weights_of(blobs, run.model_blob, layout),
        run.model_blob,
        layout,
        History(detail),
        seconds,
        virtual_s,
        None if detail.best is None else weights_of(blobs, detail.best.model_blob, layout),
        plan.folder,
        plan.results is not None,
    )
