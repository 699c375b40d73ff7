"""A federation of virtual participants, and the run of a job over it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.client import Participant, Policy
from atoll.operator.history import History
from atoll.server.aggregation import warm_for
from atoll.server.errors import ServerError
from atoll.server.jobs import JobSpec
from atoll.server.runs.drawing import looks_back
from atoll.server.runs.evaluators import Evaluator, InPlace
from atoll.server.runs.sessions import Introduction
from atoll.server.stores.store import PARTIALS_FOLDER
from atoll.settings import to_toml
from atoll.simulation.behaviour import Behaviour
from atoll.simulation.errors import RunFailedError, SetupError
from atoll.simulation.initial import Initial, InitialModel, initial_model
from atoll.simulation.population import Population
from atoll.simulation.process_pool import ProcessPool
from atoll.simulation.result import Result, detail_from
from atoll.simulation.simulated_server import SimulatedServer, make_folder
from atoll.simulation.task_runner import KEEP_PARTICIPANTS, Facts, TaskRunner
from atoll.simulation.virtual_participants import VirtualParticipants
from atoll.simulation.virtual_time import VirtualLoop, play
from atoll.simulation.worker_pool import InlinePool, WorkerPool
from atoll.wire.encoding import Encoding
from atoll.wire.views import tensor_views

STARTS_AT = 1_704_067_200.0
"""Epoch seconds at virtual second 0: Monday, 2024-01-01, 00:00 UTC."""
STUCK_S = 366 * 86_400.0
"""Virtual seconds without any change of the run after which it is given up."""
HOLDOUT = "holdout"
"""Name of the evaluator that ``run(evaluate=...)`` installs."""
_ENCODINGS = frozenset(Encoding)
Make = Callable[[Any], Participant]
Evaluate = Callable[[Mapping[str, npt.NDArray[Any]]], Mapping[str, float] | float]
Examples = int | Sequence[int]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Federation:
    """Virtual participants, and how they behave.

    Args:
        participants: makes a participant, from its number or, in a named population, from its name. Called where the
            participant works.
        population: how many there are, or their names.
        examples: how many examples each declares, one number for all or one for each. None: every participant is made
            once before the run to say it, as each says it to a server when it checks in.
        policy: what participants send besides updates; the SDK's default if None.
        behaviour: how they behave in virtual time; by default everyone is there and reports at once.
        keep: participants' objects that each process keeps; more are closed, and made again when they are drawn.

    Raises:
        SetupError: naming what cannot be simulated, and what to give instead.
    """

    participants: Make
    population: int | Sequence[str]
    examples: Examples | None = None
    policy: Policy | None = None
    behaviour: Behaviour = field(default_factory=Behaviour)
    keep: int = KEEP_PARTICIPANTS

    def __post_init__(self) -> None:
        if not callable(self.participants):
            raise SetupError(
                f"participants = {self.participants!r}: give a function that makes a participant from its number, "
                "or a class whose constructor takes it"
            )
        people = Population(self.population)
        if isinstance(self.examples, Sequence) and len(self.examples) != len(people):
            raise SetupError(f"examples: {len(self.examples)} numbers for a population of {len(people)}")
        if self.keep < 1:
            raise SetupError(f"keep = {self.keep}: at least 1 participant is kept")

    def run(
        self,
        job: JobSpec,
        *,
        initial: InitialModel,
        evaluate: Evaluate | None = None,
        strict: bool = False,
        workers: int = 0,
        progress: Progress | None = None,
    ) -> Result:
        """Play a job to its end.

        Args:
            job: what to play; a ``Job``, or one that ``parse_job`` has read.
            initial: the first model: arrays by name, or a safetensors file.
            evaluate: judges each released model; its figures are in the history as ``server/...``.
            strict: whether the first failure of participants' code raises ``ParticipantError``.
            workers: processes that participants work in; 0: this one, which a debugger can follow.
            progress: told of the released rounds and of all, after each change.

        Raises:
            SetupError: if the job cannot be played by this federation.
            ParticipantError: see ``strict``.
            RunFailedError: if the run fails, with the server's reason.
        """
        people = Population(self.population)
        played = fitting(job, people, evaluated=evaluate is not None)
        model = initial_model(initial)
        evaluators: dict[str, Evaluator] = {}
        if evaluate is not None:
            evaluators[played.evaluation.server or HOLDOUT] = InPlace(_named(evaluate))
        warm_for(played.aggregation.wire_encoding)  # before the workers are forked, who have it then too
        folder = make_folder()
        try:
            pool = self._pool(folder, workers)

            async def main(loop: VirtualLoop) -> Result:
                participants = VirtualParticipants(pool, people, self.behaviour, strict=strict)
                simulation = _Simulation(loop, pool, participants, people, folder, progress)
                return await simulation.run(played, model, evaluators, self.examples)

            return play(main)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _pool(self, folder: Path, workers: int) -> WorkerPool:
        runner = TaskRunner(self.participants, self.policy, folder / "participants", self.keep)
        return InlinePool(runner) if workers == 0 else ProcessPool(runner, workers, folder / PARTIALS_FOLDER)


@dataclass(frozen=True)
class _Simulation:
    """One run on a virtual loop."""

    loop: VirtualLoop
    pool: WorkerPool
    participants: VirtualParticipants
    people: Population
    folder: Path
    progress: Progress | None

    async def run(
        self, job: JobSpec, model: Initial, evaluators: Mapping[str, Evaluator], examples: Examples | None
    ) -> Result:
        try:
            return await self._run(job, model, evaluators, examples)
        except ServerError as error:
            raise SetupError(str(error.detail)) from error
        finally:
            await self.pool.close()

    async def _run(
        self, job: JobSpec, model: Initial, evaluators: Mapping[str, Evaluator], examples: Examples | None
    ) -> Result:
        began = time.perf_counter()
        server = await SimulatedServer.open(
            self.folder,
            clock=lambda: STARTS_AT + self.loop.time(),
            tell=self.participants.tell,
            forget=self.pool.forget,
            evaluators=evaluators,
            learns=looks_back(job),
        )
        self.participants.server = server
        try:
            run_id = await self._begin(server, job, model, examples)
            await self._ended(server, run_id)
            return await self._result(server, run_id, model, began)
        finally:
            await self.participants.close()
            await server.close()

    async def _begin(self, server: SimulatedServer, job: JobSpec, model: Initial, examples: Examples | None) -> str:
        for node in self.pool.nodes:
            server.services.nodes.add(node)
        await server.enrol(self.people.names)
        self.participants.enter(await self._introductions(examples))
        with server.services.blobs.create(expected_bytes=model.layout.size_bytes) as writer:
            for piece in model.pieces():
                writer.write(piece)
            blob = writer.commit().name
        return await server.coordinator.submit(
            job_toml=to_toml(job).encode(),
            file_name="job.toml",
            layout=model.layout,
            initial_blob=blob,
            operator="simulation",
        )

    async def _introductions(self, examples: Examples | None) -> dict[str, Introduction]:
        if examples is None:
            facts = await self.pool.facts(dict(self.people.seeds()))
        else:
            first = self.people.names[0]
            shown = (await self.pool.facts({first: self.people.seed_of(first)}))[first]
            counts = [examples] * len(self.people) if isinstance(examples, int) else examples
            facts = {
                name: Facts(int(count), shown.can_evaluate)
                for name, count in zip(self.people.names, counts, strict=True)
            }
        made = {one: Introduction(one.examples, _ENCODINGS, one.can_evaluate) for one in set(facts.values())}
        return {name: made[one] for name, one in facts.items()}

    async def _ended(self, server: SimulatedServer, run_id: str) -> None:
        """Wait until the run has ended or pauses.

        Raises:
            RunFailedError: if it has broken down.
        """
        active = server.coordinator.active(run_id)
        while active is not None:
            state, changed = active.driver.state, active.driver.changed
            if self.progress is not None:
                self.progress(state.version, state.policy.rounds)
            if active.driver.broken is not None:
                raise RunFailedError(str(active.driver.broken.detail))
            if state.status.ended or state.status == "paused":
                return
            waiting = asyncio.ensure_future(changed.wait())
            either: set[asyncio.Future[Any]] = {waiting, self.participants.failed}
            await asyncio.wait(either, timeout=STUCK_S, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if changed is active.driver.changed and not self.participants.failed.done():
                raise RunFailedError(
                    f"the run waits for {STUCK_S / 86_400:.0f} virtual days: {len(server.sessions)} participants are "
                    f"connected, and nothing changes any more ({active.performer.trouble or state.status}); check the "
                    "availability of participants and cohort.min_available"
                )
            if self.participants.failed.done():
                self.participants.failed.result()

    async def _result(self, server: SimulatedServer, run_id: str, model: Initial, began: float) -> Result:
        detail = await server.services.reader.run(lambda connection: detail_from(connection, run_id, members=False))
        if detail.run.status in ("failed", "cancelled"):
            raise RunFailedError(f"the run has {detail.run.status}: {detail.run.reason}")
        with server.services.blobs.open(detail.run.model_blob) as blob:
            content = bytearray(blob.read(0, model.layout.size_bytes))
        weights = tensor_views(model.layout, memoryview(content))
        return Result(
            weights,
            detail.run.model_blob,
            model.layout,
            History(detail),
            time.perf_counter() - began,
            self.loop.time(),
            self.folder,
        )


def fitting(job: JobSpec, people: Population, *, evaluated: bool) -> JobSpec:
    """The job as this federation plays it.

    Raises:
        SetupError: if its rounds need more participants than there are, or an evaluator that is not there.
    """
    needed = max(job.cohort.invited, job.cohort.min_available)
    if needed > len(people):
        raise SetupError(
            f"population = {len(people)} is smaller than a round, which needs {needed} (cohort.size "
            f"{job.cohort.size}, over_selection {job.cohort.over_selection:g}, min_available "
            f"{job.cohort.min_available}); raise population, or lower cohort.size"
        )
    if evaluated and job.evaluation.server is None:
        return job.model_copy(update={"evaluation": job.evaluation.model_copy(update={"server": HOLDOUT})})
    if job.evaluation.server is not None and not evaluated:
        raise SetupError(f"evaluation.server = {job.evaluation.server!r}: give its function as run(evaluate=...)")
    return job


def _named(evaluate: Evaluate) -> Evaluator:
    """An evaluator of figures with names; one number is called ``score``."""

    def judged(model: Mapping[str, npt.NDArray[np.generic]]) -> Mapping[str, float]:
        found = evaluate(model)
        return found if isinstance(found, Mapping) else {"score": float(found)}

    return judged
