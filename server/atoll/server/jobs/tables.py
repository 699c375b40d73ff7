"""The tables of a job file as frozen values; the field descriptions are the job reference.

Tables with more than a few keys are in modules of their own, ``..._section``. ``docs/job-reference.md`` is generated
from all of them (``python -m atoll.server.jobs.reference``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_serializer

from atoll.server.jobs.aggregation_section import Aggregation
from atoll.server.jobs.cohort_section import Cohort
from atoll.server.jobs.evaluation_section import Evaluation, Retention, Stop
from atoll.server.jobs.optimiser_section import IterateAveraging, Optimiser
from atoll.server.jobs.privacy_section import Privacy
from atoll.server.jobs.section import MAX_ROUNDS, JobTable
from atoll.server.jobs.statistics_section import Statistics
from atoll.server.jobs.straggler_section import Straggler
from atoll.server.jobs.training import Settings, TrainingSettings
from atoll.settings.section import Hint, Section
from atoll.settings.write import given


class JobSection(JobTable):
    """Name and length of the run."""

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,63}$", description="Shown in lists, logs and reports."),
        Hint(allowed="1 to 64 letters, digits, spaces, dots, dashes or underscores, the first a letter or digit"),
    ]
    rounds: Annotated[
        int,
        Field(
            ge=1,
            le=MAX_ROUNDS,
            description="Number of models released after the initial one. Leave it out with `[statistics]`, from "
            "which it follows.",
        ),
    ]
    seed: Annotated[
        int | None,
        Field(
            ge=0,
            lt=2**63,
            description="Seed of the participants' random numbers: `task.seed` is a hash of this seed, the round and "
            "the participant. Noise and the draw of a cohort never depend on it.",
        ),
        Hint(default="drawn by the server and kept with the run"),
    ] = None


class ModelSection(JobTable):
    """The initial model."""

    initial: Annotated[
        str,
        Field(
            min_length=1,
            max_length=4096,
            description="safetensors file with the initial weights, relative to the job file. `atoll run submit` "
            "reads and sends it; the server never opens a path from a job. From Python the weights may be given as "
            "arrays instead, without this section.",
        ),
        Hint(allowed="the path of a .safetensors file"),
    ]


class JobTables(Section):
    """A job file with valid tables. ``JobSpec`` is valid as a whole."""

    job: JobSection
    model: ModelSection | None = None
    cohort: Cohort
    straggler: Straggler = Field(default_factory=Straggler)
    aggregation: Aggregation = Field(default_factory=Aggregation)
    optimiser: Optimiser = Field(default_factory=Optimiser)
    training: TrainingSettings = Field(default_factory=lambda: Settings({}))
    evaluation: Evaluation = Field(default_factory=Evaluation)
    retention: Retention = Field(default_factory=Retention)
    stop: Stop | None = None
    iterate_averaging: IterateAveraging | None = None
    privacy: Privacy | None = None
    statistics: Statistics | None = None

    @model_serializer
    def _tables(self) -> dict[str, object]:
        """The given keys only: a key that does not apply to the job is refused even at its default value."""
        return {name: dict(table) if isinstance(table, Mapping) else table for name, table in given(self).items()}
