"""``[mesh]``, ``[data_parallel]``, ``[tensor_parallel]``, ``[pipeline]``, ``[memory]``: how the work is divided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atoll.settings import Hint, Section

REST = -1
"""The value of ``dp_shard`` that takes all ranks left by the other axes."""
MAX_DEGREE = 1 << 16

Degree = Annotated[int, Field(ge=1, le=MAX_DEGREE)]
PipelineSchedule = Literal["gpipe", "1f1b", "interleaved", "looped_bfs", "interleaved_zero_bubble", "zbv", "dualpipev"]
SPLIT_BACKWARD: frozenset[PipelineSchedule] = frozenset({"interleaved_zero_bubble", "zbv", "dualpipev"})
"""Schedules that compute the gradients of inputs and of weights at different times."""
Hook = Literal["none", "float16", "bfloat16", "powersgd", "int8", "sign", "topk"]
FEEDBACK_HOOKS: frozenset[Hook] = frozenset({"powersgd", "int8", "sign", "topk"})
"""Hooks that keep what they could not send for the next step."""


class MeshSection(Section):
    """Degrees of the mesh axes. Their product, without `ep`, is the number of processes."""

    pp: Annotated[Degree, Field(description="Pipeline parallel: layers are divided among ranks.")] = 1
    dp_replicate: Annotated[Degree, Field(description="Data parallel with replicated shards.")] = 1
    dp_shard: Annotated[
        int,
        Field(
            ge=REST,
            le=MAX_DEGREE,
            description="Data parallel with sharded parameters, gradients or optimiser states; -1: the remaining "
            "ranks.",
        ),
        Hint(allowed="a whole number from 1, or -1 for all ranks that the other axes leave", default="`-1`"),
    ] = REST
    cp: Annotated[Degree, Field(description="Context parallel: sequences are divided among ranks.")] = 1
    tp: Annotated[Degree, Field(description="Tensor parallel: matrices are divided among ranks.")] = 1
    ep: Annotated[
        Degree,
        Field(description="Expert parallel: experts are divided among ranks of `dp_shard` and `cp`; must divide them."),
    ] = 1

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find a degree of zero."""
        if self.dp_shard == 0:
            yield "dp_shard", "allowed is a whole number from 1, or -1 for all ranks that the other axes leave"


OF_DDP = ("bucket_mb", "hook", "uneven")
"""Keys of ``[data_parallel]`` that work on whole replicas only."""


class DataParallelSection(Section):
    """How replicas share gradients, parameters and optimiser states."""

    method: Annotated[
        Literal["ddp", "zero1", "zero2", "zero3"],
        Field(
            description="`ddp`: whole replicas. Sharded over `dp_shard`: `zero1` optimiser states, `zero2` gradients "
            "as well, `zero3` parameters as well (Rajbhandari et al. 2020, section 5)."
        ),
    ] = "zero3"
    cpu_offload: Annotated[bool, Field(description="Keep parameters and states in host memory (`zero2`, `zero3`).")] = (
        False
    )
    bucket_mb: Annotated[int, Field(ge=1, le=4096, description="Size of a gradient bucket, in MiB (`ddp`).")] = 25
    hook: Annotated[
        Hook,
        Field(
            description="How gradients are sent (`ddp`): uncompressed, in half precision, by PowerSGD (Vogels et al. "
            "2019), or with error feedback as int8, signs (Seide et al. 2014) or the largest elements (Lin et al. "
            "2018)."
        ),
    ] = "none"
    hook_rank: Annotated[int, Field(ge=1, description="Rank of PowerSGD's factors.")] = 4
    hook_keep: Annotated[float, Field(gt=0, le=1, description="Share of elements that `topk` sends.")] = 0.01
    hook_start: Annotated[int, Field(ge=0, description="Steps before PowerSGD begins.")] = 10
    check_replicas_every: Annotated[
        int, Field(ge=0, description="Steps between checks that ranks hold equal copies; 0: never.")
    ] = 0
    uneven: Annotated[
        bool,
        Field(
            description="Replicas get sequences in proportion to their measured speed (`ddp`); the gradient remains "
            "the exact mean."
        ),
    ] = False

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find settings of a method or hook that is not selected."""
        if self.method not in {"zero2", "zero3"}:
            yield from self.unused(("cpu_offload",), f'method = "{self.method}"')
        if self.method != "ddp":
            yield from self.unused(OF_DDP, f'method = "{self.method}"')
        if self.hook != "powersgd":
            yield from self.unused(("hook_rank", "hook_start"), f'hook = "{self.hook}"')
        if self.hook != "topk":
            yield from self.unused(("hook_keep",), f'hook = "{self.hook}"')


class TensorParallelSection(Section):
    """Tensor parallelism (Shoeybi et al. 2019) and its options."""

    sequence: Annotated[
        bool, Field(description="Divide activations along the sequence between matrices (Korthikanti et al. 2022).")
    ] = True
    loss: Annotated[bool, Field(description="Compute the loss from logits divided along the vocabulary.")] = True
    asynchronous: Annotated[
        bool,
        Field(
            description="Overlap collectives with the matrix products beside them, piece by piece, through symmetric "
            "memory (async TP). Needs GPUs of one node, `memory.compile` and `sequence`."
        ),
    ] = False

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find overlap without the collectives that it is for."""
        if self.asynchronous and not self.sequence:
            yield "asynchronous", "overlaps gathers and scatters along the sequence: set sequence = true too"


class ContextParallelSection(Section):
    """Context parallelism."""

    method: Annotated[
        Literal["ulysses", "ring"],
        Field(
            description="`ulysses` divides heads among ranks (Jacobs et al. 2023): `cp * tp` must divide their number. "
            "`ring` passes keys and values round (Liu et al. 2023)."
        ),
    ] = "ulysses"
    kernels: Annotated[
        Literal["fused", "plain"],
        Field(
            description="What computes a block of `ring`: FlashAttention where it can (16-bit formats on a GPU, every "
            "format on a CPU), or products in float32, which hold the block's scores."
        ),
    ] = "fused"

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find kernels of a method that is not selected."""
        if self.method != "ring":
            yield from self.unused(("kernels",), f'method = "{self.method}"')


class PipelineSection(Section):
    """Pipeline parallelism."""

    schedule: Annotated[
        PipelineSchedule,
        Field(
            description="`gpipe` (Huang et al. 2019), `1f1b` and `interleaved` (Narayanan et al. 2021), `looped_bfs` "
            "(Lamy-Poirier 2022), `interleaved_zero_bubble` and `zbv` (Qi et al. 2024), `dualpipev` (DeepSeek-AI 2024)."
        ),
    ] = "1f1b"
    stages_per_rank: Annotated[int, Field(ge=1, le=64, description="Stages on each rank, for schedules that loop.")] = 1
    balance: Annotated[
        Literal["even", "cost"],
        Field(
            description="How blocks are assigned to stages: evenly (embedding and output count as one each), or by "
            "cost."
        ),
    ] = "even"


class MemorySection(Section):
    """Settings that trade time for memory."""

    checkpointing: Annotated[
        Literal["none", "gathered", "selective", "full", "budget"],
        Field(
            description="Activations recomputed in the backward pass. `gathered`: what `tp` gathers along the sequence "
            "(Korthikanti et al. 2022, section 4.2.2). `selective`: all but matrix products and attention (section 5). "
            "`full`: whole blocks (Chen et al. 2016). `budget`: the compiler chooses."
        ),
    ] = "none"
    budget: Annotated[float, Field(ge=0, le=1, description="Share of activation memory that `budget` may keep.")] = 0.5
    compile: Annotated[bool, Field(description="Compile each block, and the loss except with `tp`.")] = False
    loss_chunk_tokens: Annotated[
        int | None,
        Field(
            ge=0,
            le=1 << 24,
            description="Tokens whose logits exist at the same time: output projection and cross entropy are computed "
            "in chunks. 0: all of a micro-batch. See [the loss](datacenter.md#the-loss-in-chunks).",
        ),
        Hint(default="1024 where chunks are possible, else 0"),
    ] = None

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find a budget without the compiler, and a budget that is not used."""
        if self.checkpointing == "budget" and not self.compile:
            yield "checkpointing", '"budget" needs the compiler: set compile = true too'
        if self.checkpointing != "budget":
            yield from self.unused(("budget",), f'checkpointing = "{self.checkpointing}"')
