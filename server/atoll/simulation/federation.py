"""A federation of virtual participants, and the method that runs a job over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.client import Participant, Policy
from atoll.server.aggregation import warm_for
from atoll.server.jobs import JobSpec, first_model
from atoll.server.stores.store import PARTIALS_FOLDER
from atoll.simulation.behaviour import Behaviour
from atoll.simulation.cluster import RayWorkers, ray_pool
from atoll.simulation.collector import set_aside
from atoll.simulation.errors import SetupError
from atoll.simulation.evaluating import Evaluate
from atoll.simulation.initial import Initial, InitialModel, initial_model
from atoll.simulation.participant_objects import KEEP_PARTICIPANTS
from atoll.simulation.playing import Examples, Plan, Simulation, finished
from atoll.simulation.population import Population
from atoll.simulation.process_pool import ProcessPool, load_what_training_loads
from atoll.simulation.progress import Progress, check_progress, showing
from atoll.simulation.result import Result
from atoll.simulation.resuming.asked import asked_for
from atoll.simulation.resuming.participant_folders import ParticipantStates
from atoll.simulation.resuming.results_folder import ResultsFolder
from atoll.simulation.task_runner import TaskRunner
from atoll.simulation.temporary import temporary_folder
from atoll.simulation.virtual_participants import VirtualParticipants
from atoll.simulation.virtual_time import VirtualLoop, play
from atoll.simulation.worker_pool import InlinePool, WorkerPool
from atoll.simulation.workers import Workers

HOLDOUT = "holdout"
"""Name of the evaluator that ``run(evaluate=...)`` installs."""
Make = Callable[[Any], Participant]


@dataclass(frozen=True)
class Federation:
    """Virtual participants, and how they behave.

    Args:
        participants: creates a participant, from its number or, in a named population, from its name. Called in the
            process where the participant works.
        population: the number of participants, or their names.
        examples: number of examples that each declares, one number for all or one for each. None: every participant is
            created once before the run to ask for it, as at a check-in.
        policy: what participants may send besides updates; the SDK's default if None.
        behaviour: how they behave in virtual time; by default all are available and report at once.
        keep: number of participant objects that each process keeps; others are closed, and recreated when drawn.
        batched: number of participants trained in one call of their class's ``fit_together``, in this process; 1: each
            alone. The bits differ, because sums are computed in another order.

    Raises:
        SetupError: naming the invalid value and the remedy.
    """

    participants: Make
    population: int | Sequence[str]
    examples: Examples | None = None
    policy: Policy | None = None
    behaviour: Behaviour = field(default_factory=Behaviour)
    keep: int = KEEP_PARTICIPANTS
    batched: int = 1

    def __post_init__(self) -> None:
        if not callable(self.participants):
            raise SetupError(
                f"participants = {self.participants!r}: give a function that makes a participant from its number, "
                "or a class whose constructor takes it"
            )
        population = Population(self.population)
        if isinstance(self.examples, Sequence) and len(self.examples) != len(population):
            raise SetupError(f"examples: {len(self.examples)} numbers for a population of {len(population)}")
        least = min(self.examples) if isinstance(self.examples, Sequence) else self.examples
        if least is not None and least < int(isinstance(self.examples, int)):
            raise SetupError(f"examples = {least}: give 1 or more; in a list, 0 says that a participant is not drawn")
        if self.keep < 1:
            raise SetupError(f"keep = {self.keep}: at least 1 participant is kept")
        if not 1 <= self.batched <= self.keep:
            raise SetupError(f"batched = {self.batched}: give 1, for each alone, to keep = {self.keep}")

    def run(
        self,
        job: JobSpec,
        *,
        initial: InitialModel | None = None,
        evaluate: Evaluate | None = None,
        strict: bool = False,
        workers: int | Workers | RayWorkers = 0,
        progress: Progress | bool = True,
        folder: str | Path | None = None,
    ) -> Result:
        """Run a job to its end.

        Args:
            job: a ``Job``, or a job read by ``parse_job``.
            initial: the first model: arrays by name, or a safetensors file; None for a job with statistics.
            evaluate: evaluates each released model; its figures are in the history as ``server/...``.
            strict: whether the first failure of participants' code raises ``ParticipantError``.
            workers: processes in which participants work; 0: this one, which suits a debugger. ``Workers`` may have a
                share of a GPU each; ``RayWorkers`` are actors on Ray.
            progress: called with the number of released and of all rounds, after each change. True: a bar where stderr
                is a terminal, or in a notebook, and nothing elsewhere; False: nothing.
            folder: stores the state. If this process is killed, the same call resumes, even in the middle of a round,
                and ends with the same bits. Once the run has ended, the same call returns its result at once, and a
                call with more ``job.rounds`` continues from there.

        Raises:
            SetupError: if this federation cannot run the job, the workers' resources are not available, or the folder
                has another simulation.
            ParticipantError: see ``strict``.
            EvaluateError: if ``evaluate`` raises.
            RunFailedError: if the run fails, with the server's reason.
        """
        population = Population(self.population)
        check_job(job)
        check_progress(progress)
        played = fitting(job, population, evaluated=evaluate is not None)
        model = initial_model(first_of(job, initial))
        placed = workers if isinstance(workers, RayWorkers) else Workers.of(workers)
        if self.batched > 1 and placed != Workers(0):
            raise SetupError(f"batched = {self.batched} is for one process: give workers = 0, not {workers}")
        if folder is None:
            with temporary_folder() as path:
                plan = Plan(path, played, model, population, evaluate, self.examples)
                return self._shown(plan, placed, progress, strict=strict)
        asked = self._asked(played, population, model, evaluate)
        with ResultsFolder.taken(Path(folder), asked) as results:
            plan = Plan(results.path, played, model, population, evaluate, self.examples, results, asked)
            result = finished(plan) or self._shown(plan, placed, progress, strict=strict)
            results.tidy()
            return result

    def _asked(self, job: JobSpec, population: Population, model: Initial, evaluate: Evaluate | None) -> dict[str, Any]:
        asked = asked_for(
            job,
            population,
            model,
            self.behaviour,
            participants=self.participants,
            evaluate=evaluate,
            examples=self.examples,
            policy=self.policy,
        )
        return {**asked, "batched": self.batched}

    def _shown(self, plan: Plan, workers: Workers | RayWorkers, progress: Progress | bool, *, strict: bool) -> Result:
        if not isinstance(progress, bool):
            return self._play(plan, workers, progress, strict=strict)
        with showing(f"simulating {plan.job.job.name}", asked=progress) as bar:
            progress_bar = None if bar is None else lambda done, total: bar(done, total, "in work")
            return self._play(plan, workers, progress_bar, strict=strict)

    def _play(self, plan: Plan, workers: Workers | RayWorkers, progress: Progress | None, *, strict: bool) -> Result:
        with set_aside(lambda: _load(plan, workers.count if isinstance(workers, Workers) else 0)):
            pool = self._pool(plan, workers)

            async def main(loop: VirtualLoop) -> Result:
                states = ParticipantStates(plan.participant_folders, commits=plan.results is not None)
                participants = VirtualParticipants(pool, plan.population, self.behaviour, states, strict=strict)
                return await Simulation(plan, loop, pool, participants, progress).run()

            return play(main)

    def _pool(self, plan: Plan, workers: Workers | RayWorkers) -> WorkerPool:
        if isinstance(workers, RayWorkers):
            return ray_pool(self.participants, self.policy, self.keep, workers)
        runner = TaskRunner(self.participants, self.policy, plan.participant_folders, self.keep)
        if not workers.count:
            return InlinePool(runner, self.batched)
        return ProcessPool(runner, workers, plan.folder / PARTIALS_FOLDER)


def _load(plan: Plan, forked: int) -> None:
    """Load modules that every process needs, before processes are forked."""
    updates = plan.job.job.rounds * plan.job.cohort.invited / max(1, forked)
    warm_for(plan.job.aggregation.wire_encoding, elements=plan.model.layout.size, updates=updates)
    if forked:
        load_what_training_loads()


def check_job(job: object) -> None:
    """Refuse a value that is not a job.

    Raises:
        SetupError: saying how to create one.
    """
    if not isinstance(job, JobSpec):
        raise SetupError(f"job = {job!r}: give a Job; Job.load(path) reads one from a file")


def first_of(job: JobSpec, initial: InitialModel | None) -> InitialModel:
    """The first model of a job: the given one, or for statistics the query's.

    Raises:
        SetupError: if there is none, or a superfluous one.
    """
    if job.statistics is not None:
        if initial:
            raise SetupError("initial: a job with [statistics] begins with its own model; leave it out")
        return first_model(job.statistics)
    if initial is None:
        raise SetupError("initial = None: give the first model, arrays by name or a safetensors file")
    return initial


def _asks_others_each_round(job: JobSpec, population: int) -> bool:
    """Whether statistics rounds, which must count the same rows, would draw members from a larger population."""
    cohort = job.cohort
    several = job.statistics is not None and job.job.rounds > 1
    return several and len(cohort.required_names) < cohort.size and cohort.invited < population


def fitting(job: JobSpec, population: Population, *, evaluated: bool) -> JobSpec:
    """The job, adapted to this federation.

    Raises:
        SetupError: if its rounds need more participants than exist or a missing evaluator, or if statistics rounds
            would ask different participants.
    """
    needed = max(job.cohort.invited, job.cohort.min_available)
    if needed > len(population):
        raise SetupError(
            f"population = {len(population)} is smaller than a round, which needs {needed} (cohort.size "
            f"{job.cohort.size}, over_selection {job.cohort.over_selection:g}, min_available "
            f"{job.cohort.min_available}); raise population, or lower cohort.size"
        )
    if _asks_others_each_round(job, len(population)):
        raise SetupError(
            f"population = {len(population)} is larger than cohort.size {job.cohort.size}: rounds of statistics would "
            f"ask different participants, and count different rows; set cohort.size = {len(population)}, or name "
            f"{job.cohort.size} of them in cohort.required"
        )
    if evaluated and job.evaluation.server is None:
        return job.model_copy(update={"evaluation": job.evaluation.model_copy(update={"server": HOLDOUT})})
    if job.evaluation.server is not None and not evaluated:
        raise SetupError(
            f"evaluation.server = {job.evaluation.server!r}: give its function: run(evaluate=...), or "
            "--evaluate MODULE:FUNCTION on the command line"
        )
    return job
