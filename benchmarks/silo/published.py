"""The planner's step times and memory compared with published figures for H100s, each with the data sheet of its part.

torchtitan's rows (Liang et al. 2025) were measured on H100s limited to 500 W with 2.4 TB/s of memory, Meta's 405B rows
(Grattafiori et al. 2024, section 3.3) and Megatron-LM's on 700 W parts. The shares of rates that a step reaches
(``plan.step_time``) were fitted to the rows marked ``fitted``; the others were held out. Nothing was fitted to memory.

torchtitan publishes what its allocator reserved (``max_reserved``). The same here is the plan's fullest moment over
``1 - FRAGMENTED``, without the device's own context. torchtitan's program of December 2024 differs from Atoll's in two
points, and memory is planned as theirs: its loss is of whole logits and not compiled, and its selective recomputation
keeps every second matrix product of a block, where Atoll's keeps all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.datacenter.job import SiloJob, load_job
from atoll.datacenter.machine import DATA_SHEETS
from atoll.datacenter.plan.layout import Task, layout_of
from atoll.datacenter.plan.prediction import fullest, predict_layout
from atoll.datacenter.plan.step_time import FRAGMENTED, Machine
from benchmarks.figures import Figure

COMMAND = "python -m benchmarks.silo published"
WITHIN = 0.15
"""Largest relative distance from the published time."""
MEMORY_WITHIN = 0.10
"""Largest relative distance from the published memory."""
GIB = 2**30
_EXAMPLES = Path(__file__).parents[2] / "examples" / "silo"
LLAMA_405B: dict[str, Any] = {
    "vocab": 128_256,
    "layers": 126,
    "dim": 16_384,
    "heads": 128,
    "kv_heads": 8,
    "ffn_dim": 53_248,
}
_FLOAT8: dict[str, Any] = {"precision": {"compute": "float8"}}
_BFLOAT16_BYTES = 2
_FULL: dict[str, Any] = {"memory": {"checkpointing": "full"}}
_CUBE: dict[str, Any] = {"mesh": {"pp": 8, "tp": 8}, "model": LLAMA_405B, "batch": {"global_batch": 256}}
_TORCHTITAN, _LLAMA3, _MEGATRON = "torchtitan", "Llama 3", "Megatron-LM"
LLAMA3_FLOPS = 6 * 405e9 + 6 * 126 * 16_384 * 8192
"""FLOPs per token of Llama 3 405B at 8,192 tokens, with scores under the mask only; converts TFLOP/s to tokens/s."""


@dataclass(frozen=True)
class Row:
    """A published step.

    Attributes:
        source: the publication.
        what: model, ranks and layout.
        part: name of a data sheet.
        example: job file under examples/silo whose sections ``changes`` replace.
        ranks: GPUs.
        tokens_per_s: the published figure per GPU.
        changes: as published; micro-batches of Megatron-LM are guessed.
        fitted: whether the shares were fitted to this row.
        missed: why the error of the prediction exceeds ``WITHIN``; empty if it does not.
        reserved_gib: published memory that the allocator reserved, on the fullest GPU; None if it was not published.
        memory_missed: why the error of the planned memory exceeds ``MEMORY_WITHIN``; empty if it does not.
    """

    source: str
    what: str
    part: str
    example: str
    ranks: int
    tokens_per_s: float
    changes: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    fitted: bool = True
    missed: str = ""
    reserved_gib: float | None = None
    memory_missed: str = ""

    @property
    def name(self) -> str:
        """Source, model and layout."""
        return f"{self.source} {self.what}"

    def job(self, **memory: Any) -> SiloJob:
        """Return the job of the published run, with other keys of ``[memory]``."""
        said = load_job(_EXAMPLES / f"{self.example}.toml").model_dump(exclude_unset=True)
        for section, keys in self.changes.items():
            said[section] = {**said.get(section, {}), **keys}
        return SiloJob.model_validate(said | {"memory": {**said.get("memory", {}), **memory}})

    def predicted(self) -> float:
        """Return the planned tokens per second and GPU."""
        job = self.job()
        machine = Machine.of(DATA_SHEETS[self.part])
        return predict_layout(Task.of(job), layout_of(job, self.ranks), machine).tokens_per_s.value

    def planned_gib(self) -> float:
        """Return the planned memory of the fullest GPU as the allocator reserves it, for torchtitan's program."""
        job = self.job(compile=False, loss_chunk_tokens=0)
        layout = layout_of(job, self.ranks)
        dropped = _second_products(job) if job.memory.checkpointing == "selective" else 0
        return (fullest(Task.of(job), layout).memory.size - dropped) / (1 - FRAGMENTED) / GIB


def _second_products(job: SiloJob) -> int:
    """Bytes of matrix products that torchtitan recomputes and Atoll keeps: keys, attention's output, ``w3``; no TP."""
    model, batch = job.model, job.batch
    width = model.dim * model.kv_heads // model.heads + model.dim + model.ffn_dim
    return model.layers * batch.micro_batch * batch.sequence * width * _BFLOAT16_BYTES


def _batch(sequences: int, micro_batch: int) -> dict[str, Any]:
    return {"batch": {"global_batch": sequences, "micro_batch": micro_batch}}


def _llama3(sequences: int) -> dict[str, Any]:
    return _batch(sequences, 1) | {
        "mesh": {"pp": 16, "tp": 8},
        "model": LLAMA_405B,
        "memory": {"checkpointing": "none"},
        "data_parallel": {"method": "zero1"},
        "pipeline": {"schedule": "interleaved", "stages_per_rank": 7},
    }


_LIMITED = "h100-500w"
_MICRO = (
    "micro-batches are not published: one sequence is taken; torchtitan's default, as many as stages, has up to four, "
    "and with it the plan is 14 to 16 % too low"
)
ROWS = (
    Row(
        _TORCHTITAN,
        "8B on 8",
        _LIMITED,
        "llama-8b",
        8,
        5_762,
        {"memory": {"compile": False}} | _batch(16, 2),
        reserved_gib=82.4,
        memory_missed="torchtitan reserves 5.4 GiB less with compiled blocks; the plan is the same with and without",
    ),
    Row(_TORCHTITAN, "8B on 8, compiled", _LIMITED, "llama-8b", 8, 6_667, _batch(16, 2), reserved_gib=77.0),
    Row(
        _TORCHTITAN,
        "8B on 8, compiled, float8",
        _LIMITED,
        "llama-8b",
        8,
        8_532,
        _FLOAT8 | _batch(16, 2),
        reserved_gib=76.8,
    ),
    Row(_TORCHTITAN, "8B on 128, compiled", _LIMITED, "llama-8b", 128, 6_514, _batch(256, 2), reserved_gib=62.0),
    Row(
        _TORCHTITAN,
        "8B on 64, FSDP 8 x TP 8",
        _LIMITED,
        "llama-8b",
        64,
        4_378,
        {"mesh": {"tp": 8}} | _batch(128, 16),
        fitted=False,
    ),
    Row(
        _TORCHTITAN,
        "70B on 256, FSDP 32 x TP 8",
        _LIMITED,
        "llama-70b",
        256,
        597,
        {"mesh": {"tp": 8}} | _batch(512, 16) | _FULL,
    ),
    Row(
        _TORCHTITAN,
        "405B on 512, 8 x 8 x 8, 1F1B, float8",
        _LIMITED,
        "llama-70b",
        512,
        100,
        _CUBE | _FLOAT8 | _FULL,
        reserved_gib=82.5,
        memory_missed=_MICRO,
    ),
    Row(
        _TORCHTITAN,
        "405B on 512, 8 x 8 x 8, interleaved, float8",
        _LIMITED,
        "llama-70b",
        512,
        128,
        _CUBE | _FLOAT8 | _FULL | {"pipeline": {"schedule": "interleaved", "stages_per_rank": 8}},
        reserved_gib=72.7,
        memory_missed=_MICRO,
    ),
    Row(
        _LLAMA3,
        "405B on 8,192, TP 8 PP 16 DP 64",
        "h100",
        "llama-70b",
        8192,
        430e12 / LLAMA3_FLOPS,
        _llama3(2048),
        fitted=False,
    ),
    Row(
        _LLAMA3,
        "405B on 16,384, TP 8 PP 16 DP 128",
        "h100",
        "llama-70b",
        16_384,
        400e12 / LLAMA3_FLOPS,
        _llama3(2048),
        fitted=False,
    ),
    Row(_MEGATRON, "8B on 8, float8", "h100", "llama-8b", 8, 14_000, _FLOAT8 | {"batch": {"global_batch": 128}}),
    Row(
        _MEGATRON,
        "70B on 64, TP 4 PP 4, float8",
        "h100",
        "llama-70b",
        64,
        1_610,
        _FLOAT8
        | {
            "mesh": {"tp": 4, "pp": 4},
            "pipeline": {"schedule": "interleaved", "stages_per_rank": 5},
            "batch": {"global_batch": 128},
        },
        fitted=False,
        missed="its micro-batches and recomputation are not published: those of the example are taken",
    ),
)


def run(_smoke: bool) -> Iterator[Figure]:
    """Planned and published tokens per second and GPU of each row, and memory where it was published."""
    for row in ROWS:
        name = f"{row.name}, {row.part}{'' if row.fitted else ' (kept out of fitting)'}"
        yield Figure.near(name, row.predicted(), "tokens/s", COMMAND, other=row.tokens_per_s, share=WITHIN)
        if row.reserved_gib is not None:
            gib = row.planned_gib()
            yield Figure.near("  memory", gib, "GiB", COMMAND, other=row.reserved_gib, share=MEMORY_WITHIN)
