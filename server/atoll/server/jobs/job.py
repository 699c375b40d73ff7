"""Jobs written in Python, with the sections of a job file in a short form for scripts.

::

    Job(rounds=50, cohort=Cohort(size=20), optimiser=FedAdam(lr=0.01))

is the job file

::

    [job]
    name = "job"
    rounds = 50

    [cohort]
    size = 20

    [optimiser]
    name = "fedadam"
    lr = 0.01

"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import ValidationError

from atoll.server.jobs.errors import JobFileError
from atoll.server.jobs.load import parse_job
from atoll.server.jobs.spec import JobSpec
from atoll.server.jobs.tables import ModelSection
from atoll.settings import Problem, Section, SettingsFileError, described, given, to_toml

if TYPE_CHECKING:
    from atoll.server.jobs.aggregation_section import Aggregation
    from atoll.server.jobs.cohort_section import Cohort
    from atoll.server.jobs.evaluation_section import Evaluation, Retention, Stop
    from atoll.server.jobs.optimiser_section import IterateAveraging, Optimiser
    from atoll.server.jobs.privacy_section import Privacy
    from atoll.server.jobs.statistics_section import Statistics
    from atoll.server.jobs.straggler_section import Straggler
    from atoll.wire.messages import SettingValue

DEFAULT_NAME = "job"
_SOURCE = "Job"
"""The name, in errors, of a job without a file."""


class Job(JobSpec):
    """A whole job, valid and frozen: the model of the job file (docs/job-reference.md has each section's keys).

    Args:
        rounds: number of models released after the initial one; None with ``statistics``, whose query determines it.
        cohort: the participants of a round.
        name: shown in lists, logs and reports.
        seed: seeds participants' random numbers (``task.seed``); None if the server is to draw and record one.
        initial: safetensors file with the initial weights, unless they are given as arrays.
        straggler: how long a round waits, and what happens to late reports.
        aggregation: how updates are combined.
        optimiser: how the server applies the mean update: ``FedAvg()``, ``FedAvgM()``, ``FedAdam()``, ...
        training: free settings for the participants' trainers, available as ``task.settings``.
        evaluation: how models are evaluated.
        retention: which models the server keeps.
        stop: early stopping, by a metric.
        iterate_averaging: a mean of the released models, kept in addition to the newest one.
        privacy: central differential privacy of participants.
        statistics: columns and figures to compute, instead of a model to train.

    Raises:
        JobFileError: lists every problem with its key, for example ``cohort.quorum``.
    """

    def __init__(  # noqa: PLR0913  # one keyword for each section of the file
        self,
        *,
        rounds: int | None = None,
        cohort: Cohort,
        name: str = DEFAULT_NAME,
        seed: int | None = None,
        initial: str | Path | None = None,
        straggler: Straggler | None = None,
        aggregation: Aggregation | None = None,
        optimiser: Optimiser | None = None,
        training: Mapping[str, SettingValue] | None = None,
        evaluation: Evaluation | None = None,
        retention: Retention | None = None,
        stop: Stop | None = None,
        iterate_averaging: IterateAveraging | None = None,
        privacy: Privacy | None = None,
        statistics: Statistics | None = None,
    ) -> None:
        sections = {
            "job": {"name": name, "rounds": rounds, "seed": seed},
            "model": None if initial is None else {"initial": str(initial)},
            "cohort": cohort,
            "straggler": straggler,
            "aggregation": aggregation,
            "optimiser": optimiser,
            "training": training,
            "evaluation": evaluation,
            "retention": retention,
            "stop": stop,
            "iterate_averaging": iterate_averaging,
            "privacy": privacy,
            "statistics": statistics,
        }
        # The tables that a file would have, so that defaults across tables are derived in one place for both.
        tables: dict[str, Any] = {key: _as_table(section) for key, section in sections.items() if section is not None}
        try:
            super().__init__(**tables)
        except ValidationError as error:
            raise JobFileError(described(error, JobSpec, tables, _SOURCE, {})) from None

    # Makes pydantic's `model_validate` take the tables of a file, as from `model_dump`, and not the keywords above.
    __init__.__dict__["__pydantic_base_init__"] = True

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a job file; the path of its initial weights becomes relative to the current folder.

        Raises:
            JobFileError: if the file cannot be read or has problems, which are listed with line and key.
        """
        file = Path(path)
        try:
            spec = parse_job(file.read_bytes(), str(path))
        except OSError as error:
            problem = Problem("", f"cannot be read: {error.strerror or error}")
            raise JobFileError(SettingsFileError(str(path), (problem,))) from error
        if spec.model is None:
            return cls.of(spec)
        return cls.of(spec.model_copy(update={"model": ModelSection(initial=str(file.parent / spec.model.initial))}))

    @classmethod
    def of(cls, spec: JobSpec) -> Self:
        """Make a job from a validated one."""
        values: dict[str, Any] = {key: getattr(spec, key) for key in type(spec).model_fields}
        return cls.model_construct(_fields_set=set(spec.model_fields_set), **values)

    def to_toml(self) -> str:
        """The job file, with the given keys."""
        return to_toml(self)


def _as_table(section: object) -> object:
    """The table that a file would have; a value that is not a section stays, and the validation refuses it."""
    if isinstance(section, Section):
        return given(section)
    return {key: item for key, item in section.items() if item is not None} if isinstance(section, Mapping) else section
