"""A job reduced to what matters for size and time (``Task``), and one way to divide it (``Layout``)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job.parallel import OF_DDP
from atoll.datacenter.job.silo_job import SiloJob
from atoll.datacenter.mesh.dims import ParallelDims
from atoll.datacenter.sizing.formula import Figure, given
from atoll.datacenter.sizing.shape import Shape, shape_of

if TYPE_CHECKING:
    from atoll.datacenter.job.parallel import PipelineSchedule

Method = Literal["ddp", "zero1", "zero2", "zero3"]
Checkpointing = Literal["none", "gathered", "selective", "full", "budget"]
METHODS: tuple[Method, ...] = ("ddp", "zero1", "zero2", "zero3")
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 2}
"""Bytes of an activation by ``[precision] compute``; float8 is the format of matrix products only."""
MASTER_BYTES = 4
"""Parameters, gradients between steps and optimiser states stay float32."""


@dataclass(frozen=True, eq=False)
class Task:
    """The part of a job that does not depend on the layout. Compared by identity, as a key of caches.

    Attributes:
        job: the parsed job file.
        shape: shape of its model.
        sequence: tokens of one sequence.
        width: bytes of an activation, and of a gathered parameter.
        reduce_width: bytes of a gradient element while it is sent.
        fused_norm: whether RMSNorm is one kernel, as on GPUs, or several operators, as on CPUs.
    """

    job: SiloJob
    shape: Shape
    sequence: Figure
    width: Figure
    reduce_width: Figure
    fused_norm: bool

    @classmethod
    def of(cls, job: SiloJob, *, fused_norm: bool = True) -> Task:
        """Return the task of a job.

        Raises:
            LayoutError: if its model is of a kind that the planner does not know.
        """
        return cls(
            job=job,
            shape=shape_of(job.model),
            sequence=given("sequence", job.batch.sequence, "tokens"),
            width=given("bytes of an activation", WIDTHS[job.precision.compute]),
            reduce_width=given("bytes of a travelling gradient", WIDTHS[job.precision.reduce]),
            fused_norm=fused_norm,
        )

    @property
    def has_head(self) -> bool:
        """Whether the output projection has no adapter, so that the loss can be computed in chunks of tokens."""
        return not self.shape.output_adapter.value

    @cached_property
    def state_elements(self) -> int:
        """Numbers that the optimiser keeps for each parameter."""
        return state_elements(self.job)


def state_elements(job: SiloJob) -> int:
    """Return how many numbers the job's optimiser keeps for each parameter; Muon one less for matrices of blocks."""
    return int(job.optimiser.momentum > 0) if job.optimiser.name == "sgd" else 2


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to divide a job.

    Attributes:
        dims: degrees of the mesh axes.
        method: how data-parallel ranks share parameters, gradients and states.
        micro_batch: sequences of one forward pass.
        micro_batches: forward passes of one rank in a step.
        checkpointing: what the backward pass recomputes.
        schedule: schedule of the pipeline; unused if ``dims.pp`` is 1.
        stages_per_rank: pipeline stages on each rank.
    """

    dims: ParallelDims
    method: Method
    micro_batch: int
    micro_batches: int
    checkpointing: Checkpointing
    schedule: PipelineSchedule = "1f1b"
    stages_per_rank: int = 1

    @property
    def stages(self) -> int:
        """Pipeline stages of the whole model."""
        return self.dims.pp * self.stages_per_rank

    @property
    def plain_ddp(self) -> bool:
        """Whether PyTorch's DDP replicates. DDP does not combine with other axes, where FSDP replicates."""
        return self.method == "ddp" and self.dims.batch == self.dims.world_size

    @property
    def shards(self) -> int:
        """Ranks over which parameters and states are sharded."""
        return 1 if self.method == "ddp" else self.dims.fsdp

    @property
    def replicas(self) -> int:
        """Ranks that hold the same shard and sum its gradient."""
        return self.dims.loss if self.method == "ddp" else self.dims.dp_replicate

    def describe(self) -> str:
        """Return the layout in one line."""
        text = f"{self.dims.describe()}, {self.method}, {self.micro_batches} x {self.micro_batch} sequences"
        if self.dims.pp > 1:
            stages = f" x {self.stages_per_rank}" if self.stages_per_rank > 1 else ""
            text += f", {self.schedule}{stages}"
        return text if self.checkpointing == "none" else f"{text}, {self.checkpointing} recomputation"

    def as_dict(self) -> dict[str, Any]:
        """Return the layout for JSON."""
        return {
            **asdict(self.dims),
            "method": self.method,
            "micro_batch": self.micro_batch,
            "micro_batches": self.micro_batches,
            "checkpointing": self.checkpointing,
            "schedule": self.schedule if self.dims.pp > 1 else None,
            "stages_per_rank": self.stages_per_rank if self.dims.pp > 1 else None,
        }


def layout_of(job: SiloJob, ranks: int) -> Layout:
    """Return the layout that the job file asks for.

    Raises:
        LayoutError: if its degrees do not match the number of ranks, or the batch cannot be divided evenly.
    """
    dims = ParallelDims.of(job.mesh, ranks)
    per_pass = dims.batch * job.batch.micro_batch
    if job.batch.global_batch % per_pass:
        raise LayoutError(
            f"batch.global_batch = {job.batch.global_batch} is not a multiple of {dims.batch} data-parallel ranks * "
            f"micro_batch {job.batch.micro_batch} = {per_pass}"
        )
    return Layout(
        dims,
        job.data_parallel.method,
        job.batch.micro_batch,
        job.batch.global_batch // per_pass,
        job.memory.checkpointing,
        job.pipeline.schedule,
        stages_per_rank(job.pipeline.schedule, job.pipeline.stages_per_rank),
    )


def stages_per_rank(schedule: PipelineSchedule, asked: int) -> int:
    """Return the stages per rank; V schedules always have two."""
    return 2 if schedule in {"zbv", "dualpipev"} else asked


def job_with(job: SiloJob, layout: Layout) -> SiloJob:
    """Return the job with this layout, validated again."""
    said = job.model_dump(exclude_unset=True)
    dims = layout.dims
    said["mesh"] = asdict(dims)
    said["batch"] = {**said.get("batch", {}), "micro_batch": layout.micro_batch}
    parallel = {**said.get("data_parallel", {}), "method": layout.method}
    if layout.method != "ddp":
        for key in (*OF_DDP, "hook_rank", "hook_keep", "hook_start"):
            parallel.pop(key, None)
    if layout.method not in {"zero2", "zero3"}:
        parallel.pop("cpu_offload", None)
    said["data_parallel"] = parallel
    said["memory"] = {**said.get("memory", {}), "checkpointing": layout.checkpointing}
    if layout.checkpointing != "budget":
        said["memory"].pop("budget", None)
    said["pipeline"] = {**said.get("pipeline", {}), "schedule": layout.schedule}
    said["pipeline"]["stages_per_rank"] = layout.stages_per_rank
    return SiloJob.model_validate(said)
