"""Sweep a grid of values for keys of a job, each combination repeated with different seeds."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.operator.comparison import Comparison
from atoll.operator.run_job import flat
from atoll.operator.variants import compared_run, label_of, named_by_jobs
from atoll.server.control.comparing import ComparedRun
from atoll.server.jobs import Job, JobFileError, JobSpec
from atoll.server.jobs.changes import as_table, changed
from atoll.server.stores.database_place import DATABASE_FILE
from atoll.simulation.cluster import RayWorkers
from atoll.simulation.errors import RunFailedError, SetupError, WorkerError
from atoll.simulation.evaluating import Evaluate
from atoll.simulation.federation import Federation, check_job, fitting
from atoll.simulation.initial import InitialModel
from atoll.simulation.parallel_runs import MOST_JOBS, played_aside
from atoll.simulation.population import Population
from atoll.simulation.progress import Progress, SweepProgress, check_progress, showing
from atoll.simulation.result import Result
from atoll.simulation.seeds import repeated
from atoll.simulation.temporary import new_folder
from atoll.simulation.workers import Workers

FEDERATION = "federation"
"""The key of the federation in a comparison of several federations."""
_READABLE = 80

Done = Callable[[ComparedRun, Result | None], None]
"""Called after each run with its row and its result, None if it failed."""
_Row = tuple[ComparedRun, Result | None]
_Play = Callable[..., _Row]


@dataclass(frozen=True)
class _Planned:
    """A run of a sweep before it starts."""

    variant: str
    settings: Mapping[str, object]
    federation: Federation
    job: Job
    repeat: int

    @property
    def folder_name(self) -> str:
        """A readable folder name, the same for a variant and repeat in any grid, and a valid file name."""
        digest = hashlib.sha256(self.variant.encode()).hexdigest()[:8]
        readable = re.sub(r"[^A-Za-z0-9.=]+", "_", self.variant)[:_READABLE]
        return f"{readable}-{digest}-{self.repeat + 1}"


def sweep(  # noqa: PLR0913  # what federation.run takes, and the grid
    federation: Federation | Mapping[str, Federation],
    job: JobSpec,
    grid: Mapping[str, Sequence[object] | npt.NDArray[Any]] | None = None,
    *,
    initial: InitialModel,
    repeat: int = 1,
    evaluate: Evaluate | None = None,
    strict: bool = False,
    workers: int | Workers | RayWorkers = 0,
    jobs: int = 1,
    progress: SweepProgress | bool = True,
    done: Done | None = None,
    folder: str | Path | None = None,
) -> Comparison:
    """Run a job for every combination of values, ``repeat`` times each.

    Every job is validated before the first run. Runs that fail or lose a worker stay in the result with their reason.

    Args:
        federation: the virtual participants, or several federations by name, which add an axis to the grid.
        job: the common job of all runs.
        grid: values by dotted key of the job, for example ``{"optimiser.lr": [0.01, 0.1]}``; a key may be a whole
            section: ``{"optimiser": [FedAvg(), FedAdam(lr=0.03)]}``.
        initial: the first model of every run.
        repeat: runs of each combination. They differ in ``job.seed`` and ``cohort.seed``; repeats of the same number
            have the same seeds in every combination (see ``seeds.repeated``).
        evaluate: see ``Federation.run``.
        strict: see ``Federation.run``.
        workers: see ``Federation.run``.
        jobs: number of concurrent runs, each in its own process with its own ``workers``. Digests equal those of
            sequential runs.
        progress: called with the released rounds of all runs, their total rounds, and a run's variant, after each
            change; True and False as in ``Federation.run``.
        done: called with each run in the order of the table, to save its model or report; results are not kept.
        folder: stores the state of each run in its own subfolder, so that the same call resumes if this process is
            killed. Ended runs are not repeated, even if values or repeats were added.

    Raises:
        SetupError: naming the key, its value and what is allowed, before the first run.
        ParticipantError: if ``strict``.
    """
    if folder is not None and (Path(folder) / DATABASE_FILE).exists():
        raise SetupError(f"folder = {str(folder)!r} has the state of one run; give a sweep another folder")
    check_job(job)
    check_progress(progress)
    _check_jobs(jobs, workers)
    axes = {key: _plain(values) for key, values in (grid or {}).items()}
    federations = {"": federation} if isinstance(federation, Federation) else dict(federation)
    plan = list(_planned(federations, job, axes, repeat, evaluated=evaluate is not None))
    played = partial(_played, initial=initial, evaluate=evaluate, strict=strict, workers=workers)
    with contextlib.ExitStack() as stack:
        shown: SweepProgress | None = None if isinstance(progress, bool) else progress
        if isinstance(progress, bool):
            shown = stack.enter_context(showing(f"simulating {job.job.name}", asked=progress))
        made = _one_by_one(plan, played, shown, folder) if jobs == 1 else _aside(plan, played, shown, folder, jobs)
        rows = stack.enter_context(contextlib.closing(made))
        runs = []
        for row, result in rows:
            runs.append(row)
            if done is not None:
                done(row, result)
    return Comparison(tuple(runs))


def _check_jobs(jobs: int, workers: int | Workers | RayWorkers) -> None:
    if jobs not in range(1, MOST_JOBS + 1):
        raise SetupError(f"jobs = {jobs!r}: give 1, for one run after the other, to {MOST_JOBS}")
    if jobs > 1 and isinstance(workers, RayWorkers):
        raise SetupError(f"jobs = {jobs}: workers on Ray are for one run at a time; give jobs = 1, or worker processes")
    if jobs > 1 and isinstance(workers, Workers) and workers.gpus:
        raise SetupError(
            f"jobs = {jobs}: workers with gpus = {workers.gpus:g} are for one run at a time, or runs would be dealt "
            "the same GPUs; give jobs = 1"
        )


def _one_by_one(
    plan: Sequence[_Planned], played: _Play, progress: SweepProgress | None, folder: str | Path | None
) -> Generator[_Row]:
    total, before = sum(one.job.job.rounds for one in plan), 0
    for one in plan:
        shown = False if progress is None else _of_one_run(progress, before, total, one.variant)
        yield played(one, progress=shown, folder=None if folder is None else Path(folder) / one.folder_name)
        before += one.job.job.rounds


def _aside(
    plan: Sequence[_Planned], played: _Play, progress: SweepProgress | None, folder: str | Path | None, jobs: int
) -> Generator[_Row]:
    """Execute runs concurrently, each in its folder, from which this process reads the result or the error."""
    total = sum(one.job.job.rounds for one in plan)
    folders = [new_folder() if folder is None else Path(folder) / one.folder_name for one in plan]

    def show(released: int, place: int) -> None:
        if progress is not None:
            progress(released, total, plan[place].variant)

    plays = [partial(_in_child, played, one, at) for one, at in zip(plan, folders, strict=True)]
    with contextlib.closing(played_aside(plays, jobs, show)) as ended:
        for one, at, status in zip(plan, folders, ended, strict=True):
            if status < 0:
                yield _failed(one, f"its process was ended by signal {-status}; the machine may have run out of memory")
                continue
            row, result = played(one, progress=False, folder=at)
            yield row, result if folder is not None or result is None else replace(result, _folder_stays=False)


def _in_child(played: _Play, one: _Planned, folder: Path, progress: Progress) -> None:
    played(one, progress=progress, folder=folder)


def compare(results: Sequence[Result] | Mapping[str, Result | Sequence[Result]]) -> Comparison:
    """Compare results.

    Args:
        results: results in a sequence are named after the differences of their jobs, and are repeats if only seeds
            differ; in a mapping, the results of one name are repeats.

    Raises:
        SetupError: if there are none, or an item is not a result.
    """
    if isinstance(results, Mapping):
        named = [(name, one) for name, found in results.items() for one in _several(found, f"results[{name!r}]")]
        runs = tuple(replace(_row(one), variant=name) for name, one in named)
    else:
        found = _several(results, "results")
        runs = named_by_jobs([_row(one) for one in found], [one.history.detail.job_toml for one in found])
    if not runs:
        raise SetupError("there is no result to compare; give at least one")
    return Comparison(runs)


def _planned(
    federations: Mapping[str, Federation],
    job: JobSpec,
    grid: Mapping[str, Sequence[object]],
    repeat: int,
    *,
    evaluated: bool,
) -> Iterator[_Planned]:
    if repeat < 1:
        raise SetupError(f"repeat = {repeat}: each combination is run at least once")
    if not federations:
        raise SetupError("there is no federation to run; give at least one")
    for place, (key, values) in enumerate(grid.items()):
        if lost := next((one for one in list(grid)[:place] if one.startswith(f"{key}.")), ""):
            raise SetupError(f"sweep {key} would undo {lost}; give {key} before {lost}")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise SetupError(f"sweep {key}: allowed is a list of at least one value, not {values!r}")
        shown = [label_of({key: as_table(value)}) for value in values]
        if twice := next((one for one in shown if shown.count(one) > 1), ""):
            raise SetupError(f"sweep {twice} is there twice; give each value once, and repeat= for repeats")
    axes = [list(zip(values, _shown(values), strict=True)) for values in grid.values()]
    for name, federation in federations.items():
        for point in itertools.product(*axes):
            settings = dict(zip(grid, (value for value, _ in point), strict=True))
            own = {FEDERATION: name} if name else {}
            variant = label_of(own | dict(zip(grid, (shown for _, shown in point), strict=True))) or job.job.name
            made = _job(job, settings, variant)
            fitting(made, Population(federation.population), evaluated=evaluated)
            for number in range(repeat):
                yield _Planned(variant, own | flat(_tables(settings)), federation, repeated(made, number), number)


def _plain(values: Any) -> Any:
    """NumPy arrays and scalars as Python values; other values unchanged."""
    if isinstance(values, np.ndarray):
        return values.tolist()
    if isinstance(values, Sequence) and not isinstance(values, str):
        return [one.item() if isinstance(one, np.generic) else one for one in values]
    return values


def _job(job: JobSpec, settings: Mapping[str, object], variant: str) -> Job:
    try:
        return changed(job, settings, f"sweep {variant}")
    except JobFileError as error:
        raise SetupError(str(error)) from error


def _played(one: _Planned, **options: Any) -> _Row:
    try:
        result = one.federation.run(one.job, **options)
    except (RunFailedError, WorkerError) as error:
        return _failed(one, str(error))
    return replace(_row(result), variant=one.variant, settings=one.settings), result


def _failed(one: _Planned, why: str) -> _Row:
    seeds = (one.job.job.seed, one.job.cohort.seed)
    return ComparedRun(one.variant, "", "failed", why, "", (), one.settings, *seeds), None


def _row(result: Result) -> ComparedRun:
    return compared_run(result.detail(), result.ledger, seconds=result.seconds, virtual_s=result.virtual_s)


def _of_one_run(progress: SweepProgress, before: int, total: int, variant: str) -> Progress:
    return lambda released, _: progress(before + released, total, variant)


def _several(given: object, name: str) -> Sequence[Result]:
    found = [given] if isinstance(given, Result) else given
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise SetupError(f"{name} = {given!r}: give results of Federation.run, in a list or by name")
    if other := next((one for one in found if not isinstance(one, Result)), None):
        raise SetupError(f"{name} has {other!r}, which is not a Result; give what Federation.run returns")
    return found


def _tables(settings: Mapping[str, object]) -> dict[str, object]:
    return {key: as_table(value) for key, value in settings.items()}


def _shown(values: Sequence[object]) -> list[object]:
    """The values as labels: whole sections by name, if the names are distinct."""
    tables = [as_table(value) for value in values]
    names = [table.get("name") if isinstance(table, Mapping) else None for table in tables]
    return list(names) if all(names) and len(set(names)) == len(names) else tables
