"""The whole job file as one frozen value."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job.asynchrony import AsynchronySection
from atoll.datacenter.job.federation import FederationSection
from atoll.datacenter.job.huggingface import completed, find_checkpoint
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


_SIZES = {"vocab", "layers", "dim", "heads", "ffn_dim"}
"""Keys of ``[model]``; a job with none of them cannot be planned without its checkpoint."""


def load_job(path: Path) -> SiloJob:
    """Read and validate a job file. ``model.weights`` is returned as an absolute path, with the checkpoint's sizes.

    If the job names user functions, modules beside the file can be imported from now on; all other modules take
    precedence.

    Raises:
        SettingsFileError: listing every problem: file, line, key, value and what is allowed.
        LayoutError: if the job contradicts the checkpoint that it starts from, or needs sizes of one that is missing.
        OSError: if the file cannot be read.
    """
    job = parse(path.read_bytes(), SiloJob, str(path), partial(_with_checkpoint, path.parent))
    folder = str(path.parent.resolve())
    if ":" in f"{job.model.kind}{job.data.source}" and folder not in sys.path:
        sys.path.append(folder)
    return job


def _with_checkpoint(folder: Path, tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Find the checkpoint of a job file, and take the sizes that the file leaves out from it."""
    model = tables.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("weights"), str):
        return tables
    known = model.get("kind", "llama") == "llama"
    try:
        found = find_checkpoint(model["weights"], folder)
    except LayoutError as error:
        if known and not _SIZES & model.keys():
            raise LayoutError(f"model.weights = {error}; to plan without it, write the sizes in [model]") from error
        return {**tables, "model": {**model, "weights": str((folder / model["weights"]).resolve())}}
    if known:
        return {**tables, "model": completed(model, found)}
    return {**tables, "model": {**model, "weights": str(found)}}
