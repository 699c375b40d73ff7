"""Name the variants of a comparison by the differences between the runs' jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from atoll.operator.run_job import job_keys
from atoll.server.control.comparing import ComparedRun

if TYPE_CHECKING:
    from atoll.operator.ledger import RunLedger
    from atoll.server.control import RunDetail

MAX_LABEL = 80
"""Maximum characters of a variant's name; if its settings are longer, the job's name is used."""
_NOT_COMPARED = frozenset({"job.seed", "cohort.seed", "job.name"})


def compared_run(
    detail: RunDetail, ledger: RunLedger | None, *, seconds: float | None = None, virtual_s: float | None = None
) -> ComparedRun:
    """A run for a comparison, as the only run of its variant.

    Args:
        detail: the run with its rounds and members; members are dropped after their bytes are counted.
        ledger: its charges; None for a run without privacy.
        seconds: its duration in real seconds.
        virtual_s: its duration in virtual seconds.
    """
    run = detail.run
    seed = job_keys(detail.job_toml).get("cohort.seed")
    return ComparedRun(
        variant=run.name,
        run=run.run,
        status=run.status,
        reason=run.reason,
        model=run.model_blob,
        rounds=tuple(replace(item, members=()) for item in detail.rounds),
        job_seed=detail.seed,
        cohort_seed=seed if isinstance(seed, int) else None,
        seconds=seconds,
        virtual_s=virtual_s,
        sent_bytes=sum(member.payload_bytes for item in detail.rounds for member in item.members),
        epsilon=None if ledger is None else ledger.epsilon,
        delta=None if ledger is None else ledger.delta,
    )


def named_by_jobs(
    runs: Sequence[ComparedRun], jobs: Sequence[str], *, separate: bool = False
) -> tuple[ComparedRun, ...]:
    """The runs, with variants named after the differences of their jobs; seeds and names are ignored.

    Args:
        runs: each with the name of its job as variant.
        jobs: the job files of the runs.
        separate: whether each run is a variant of its own, named after the run.
    """
    complete = [job_keys(one, complete=True) for one in jobs]
    given = {key for one in jobs for key in job_keys(one)}
    keys = sorted({key for job in complete for key in job} - _NOT_COMPARED)
    differing = [key for key in keys if len({repr(job.get(key)) for job in complete}) > 1]
    shown = [key for key in differing if key in given] or differing
    settings = [{key: job[key] for key in shown if key in job} for job in complete]
    if separate:
        labels = [f"{run.variant} {run.run}" for run in runs]
    else:
        jobs_apart = [tuple(repr(job.get(key)) for key in differing) for job in complete]
        labels = _distinct([label_of(one) for one in settings], [run.variant for run in runs], jobs_apart)
    return tuple(
        replace(run, variant=label, settings=one) for run, label, one in zip(runs, labels, settings, strict=True)
    )


def label_of(settings: Mapping[str, object]) -> str:
    """The name of a variant: ``optimiser.lr = 0.01, cohort.size = 10``."""
    return ", ".join(f"{key} = {_shown(value)}" for key, value in settings.items())


def _distinct(labels: Sequence[str], names: Sequence[str], variants: Sequence[object]) -> list[str]:
    """A label for each run: equal within a variant, distinct between variants."""
    if any(not label or len(label) > MAX_LABEL for label in labels):
        labels = names
    first: dict[object, str] = {}
    for label, variant in zip(labels, variants, strict=True):
        first.setdefault(variant, label)
    taken = Counter(first.values())
    numbers: Counter[str] = Counter()
    for variant, label in first.items():
        if taken[label] > 1:
            numbers[label] += 1
            first[variant] = f"{label} ({numbers[label]})"
    return [first[variant] for variant in variants]


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{label_of(value)}}}"
    return f"{value:g}" if isinstance(value, float) else str(value)
