"""The whole job file as one frozen value."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field

from atoll.datacenter.job.asynchrony import AsynchronySection
from atoll.datacenter.job.federation import FederationSection
from atoll.datacenter.job.model import ModelSection
from atoll.datacenter.job.operation import (
    CheckpointSection,
    EvaluationSection,
    FaultsSection,
    MetricsSection,
    ProcessesSection,
)
from atoll.datacenter.job.parallel import (
    ContextParallelSection,
    DataParallelSection,
    MemorySection,
    MeshSection,
    PipelineSection,
    TensorParallelSection,
)
from atoll.datacenter.job.privacy import PrivacySection
from atoll.datacenter.job.training import (
    BatchSection,
    DataSection,
    OptimiserSection,
    PrecisionSection,
    ScheduleSection,
)
from atoll.settings import Hint, Section, parse


class JobSection(Section):
    """Name, length and seed of the job."""

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,63}$", description="Shown in progress, metrics and checkpoints."),
        Hint(allowed="1 to 64 letters, digits, spaces, dots, dashes or underscores, the first a letter or digit"),
    ]
    steps: Annotated[int, Field(ge=1, le=1 << 40, description="Steps of the optimiser.")]
    seed: Annotated[int, Field(ge=0, lt=1 << 63, description="Seed of initial weights, data order and dropout.")] = 0


class SiloJob(Section):
    """All settings of a silo's training job. Every section except ``[job]`` and ``[model]`` has defaults."""

    job: JobSection
    model: ModelSection
    data: DataSection = Field(default_factory=DataSection)
    batch: BatchSection = Field(default_factory=BatchSection)
    optimiser: OptimiserSection = Field(default_factory=OptimiserSection)
    schedule: ScheduleSection = Field(default_factory=ScheduleSection)
    precision: PrecisionSection = Field(default_factory=PrecisionSection)
    mesh: MeshSection = Field(default_factory=MeshSection)
    data_parallel: DataParallelSection = Field(default_factory=DataParallelSection)
    tensor_parallel: TensorParallelSection = Field(default_factory=TensorParallelSection)
    context_parallel: ContextParallelSection = Field(default_factory=ContextParallelSection)
    pipeline: PipelineSection = Field(default_factory=PipelineSection)
    memory: MemorySection = Field(default_factory=MemorySection)
    asynchrony: AsynchronySection | None = None
    privacy: PrivacySection | None = None
    evaluation: EvaluationSection | None = None
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection)
    faults: FaultsSection = Field(default_factory=FaultsSection)
    processes: ProcessesSection = Field(default_factory=ProcessesSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    federation: FederationSection = Field(default_factory=FederationSection)


def load_job(path: Path) -> SiloJob:
    """Read and validate a job file. ``model.weights``, relative to the file, is returned as an absolute path.

    If the job names user functions, modules beside the file can be imported from now on; all other modules take
    precedence.

    Raises:
        SettingsFileError: listing every problem: file, line, key, value and what is allowed.
        OSError: if the file cannot be read.
    """
    job = parse(path.read_bytes(), SiloJob, str(path))
    folder = str(path.parent.resolve())
    if ":" in f"{job.model.kind}{job.data.source}" and folder not in sys.path:
        sys.path.append(folder)
    if job.model.weights is None:
        return job
    weights = str((path.parent / job.model.weights).resolve())
    return job.model_copy(update={"model": job.model.model_copy(update={"weights": weights})})
