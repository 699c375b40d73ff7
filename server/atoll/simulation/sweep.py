"""Several simulations side by side: a grid of values for keys of a job, each repeated with other seeds."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.operator.comparison import Comparison
from atoll.operator.variants import compared_run, flat, label_of, named_by_jobs
from atoll.server.control.comparing import ComparedRun
from atoll.server.jobs import Job, JobFileError, JobSpec
from atoll.server.jobs.changes import as_table, changed
from atoll.server.stores.store import DATABASE_FILE
from atoll.simulation.cluster import RayWorkers
from atoll.simulation.errors import RunFailedError, SetupError, WorkerError
from atoll.simulation.evaluating import Evaluate
from atoll.simulation.federation import Federation, check_job, fitting
from atoll.simulation.initial import InitialModel
from atoll.simulation.population import Population
from atoll.simulation.result import Result
from atoll.simulation.seeds import repeated

FEDERATION = "federation"
"""The key under which several federations stand in a comparison."""
_READABLE = 80

SweepProgress = Callable[[int, int, str], None]
"""Called with the rounds that all runs have released, the rounds of all runs, and the variant that is played."""
Done = Callable[[ComparedRun, Result | None], None]
"""Called after each run with its row and its result, None if it failed."""


@dataclass(frozen=True)
class _Planned:
    """A run of a sweep before it is played."""

    variant: str
    settings: Mapping[str, object]
    federation: Federation
    job: Job
    repeat: int

    @property
    def folder_name(self) -> str:
        """The same for the same variant and repeat of any grid; readable, and no longer than file names may be."""
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
    workers: int | RayWorkers = 0,
    progress: SweepProgress | None = None,
    done: Done | None = None,
    folder: str | Path | None = None,
) -> Comparison:
    """Play a job once for every combination of values, ``repeat`` times each, one run after the other.

    Every job is validated before the first run. Runs that fail, or lose a worker, stay in it with their reason.

    Args:
        federation: the virtual participants, or several federations by name, which then are one more axis of the grid.
        job: what all runs have in common.
        grid: values by dotted key of the job, for example ``{"optimiser.lr": [0.01, 0.1]}``; a key may be a whole
            section: ``{"optimiser": [FedAvg(), FedAdam(lr=0.03)]}``.
        initial: the first model of every run.
        repeat: runs of each combination. They differ in ``job.seed`` and ``cohort.seed``; repeats of the same number
            have the same seeds in every combination (see ``seeds.repeated``).
        evaluate: see ``Federation.run``.
        strict: see ``Federation.run``.
        workers: see ``Federation.run``.
        progress: told of the rounds released, after each change.
        done: given each run as it ends, to save its model or report: results are not kept.
        folder: keeps the state of each run in a folder of its own there, so that the same call goes on if this process
            is killed. Runs that have ended are not played again, not either if values or repeats were added.

    Raises:
        SetupError: naming the key, its value and what is allowed, before anything is played.
        ParticipantError: if ``strict``.
    """
    if folder is not None and (Path(folder) / DATABASE_FILE).exists():
        raise SetupError(f"folder = {str(folder)!r} has the state of one run; give a sweep another folder")
    check_job(job)
    axes = {key: _plain(values) for key, values in (grid or {}).items()}
    federations = {"": federation} if isinstance(federation, Federation) else dict(federation)
    plan = list(_planned(federations, job, axes, repeat, evaluated=evaluate is not None))
    total, before = sum(one.job.job.rounds for one in plan), 0
    runs = []
    for one in plan:
        told = None if progress is None else _told(progress, before, total, one.variant)
        kept = None if folder is None else Path(folder) / one.folder_name
        row, result = _played(
            one, initial=initial, evaluate=evaluate, strict=strict, workers=workers, progress=told, folder=kept
        )
        runs.append(row)
        if done is not None:
            done(row, result)
        before += one.job.job.rounds
    return Comparison(tuple(runs))


def compare(results: Sequence[Result] | Mapping[str, Result | Sequence[Result]]) -> Comparison:
    """Results side by side.

    Args:
        results: in a sequence they are named after what their jobs differ in, and are repeats where that is nothing
            but seeds; by name, the results of one name are repeats.

    Raises:
        SetupError: if there are none, or something is no result.
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
        raise SetupError(f"repeat = {repeat}: each combination is played at least once")
    if not federations:
        raise SetupError("there is no federation to play; give at least one")
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
    """NumPy arrays and scalars as Python's; other values as they are."""
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


def _played(one: _Planned, **options: Any) -> tuple[ComparedRun, Result | None]:
    try:
        result = one.federation.run(one.job, **options)
    except (RunFailedError, WorkerError) as error:
        seeds = (one.job.job.seed, one.job.cohort.seed)
        return ComparedRun(one.variant, "", "failed", str(error), "", (), one.settings, *seeds), None
    return replace(_row(result), variant=one.variant, settings=one.settings), result


def _row(result: Result) -> ComparedRun:
    return compared_run(result.detail(), result.ledger, seconds=result.seconds, virtual_s=result.virtual_s)


def _told(progress: SweepProgress, before: int, total: int, variant: str) -> Callable[[int, int], None]:
    return lambda released, _: progress(before + released, total, variant)


def _several(given: object, name: str) -> Sequence[Result]:
    found = [given] if isinstance(given, Result) else given
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise SetupError(f"{name} = {given!r}: give results of Federation.run, in a list or by name")
    if other := next((one for one in found if not isinstance(one, Result)), None):
        raise SetupError(f"{name} has {other!r}, which is no Result; give what Federation.run returns")
    return found


def _tables(settings: Mapping[str, object]) -> dict[str, object]:
    return {key: as_table(value) for key, value in settings.items()}


def _shown(values: Sequence[object]) -> list[object]:
    """The values as labels have them: whole sections by their names alone where these tell them apart."""
    tables = [as_table(value) for value in values]
    names = [table.get("name") if isinstance(table, Mapping) else None for table in tables]
    return list(names) if all(names) and len(set(names)) == len(names) else tables
