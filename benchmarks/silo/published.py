"""The planner's step times compared with published figures for H100s, each with the data sheet of its part.

torchtitan's rows (Liang et al. 2025) were measured on H100s limited to 500 W with 2.4 TB/s of memory, Meta's 405B rows
(Grattafiori et al. 2024, section 3.3) and Megatron-LM's on 700 W parts. The shares of rates that a step reaches
(``plan.step_time``) were fitted to the rows marked ``fitted``; the others were held out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.datacenter.job import SiloJob, load_job
from atoll.datacenter.machine import DATA_SHEETS
from atoll.datacenter.plan.layout import Task, layout_of
from atoll.datacenter.plan.prediction import predict_layout
from atoll.datacenter.plan.step_time import Machine
from benchmarks.figures import Figure

COMMAND = "python -m benchmarks.silo published"
WITHIN = 0.15
"""Largest relative distance from the published figure."""
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

    @property
    def name(self) -> str:
        """Source, model and layout."""
        return f"{self.source} {self.what}"

    def job(self) -> SiloJob:
        """Return the job of the published run."""
        said = load_job(_EXAMPLES / f"{self.example}.toml").model_dump(exclude_unset=True)
        for section, keys in self.changes.items():
            said[section] = {**said.get(section, {}), **keys}
        return SiloJob.model_validate(said)

    def predicted(self) -> float:
        """Return the planned tokens per second and GPU."""
        job = self.job()
        machine = Machine.of(DATA_SHEETS[self.part])
        return predict_layout(Task.of(job), layout_of(job, self.ranks), machine).tokens_per_s.value


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
ROWS = (
    Row(_TORCHTITAN, "8B on 8", _LIMITED, "llama-8b", 8, 5_762, {"memory": {"compile": False}} | _batch(16, 2)),
    Row(_TORCHTITAN, "8B on 8, compiled", _LIMITED, "llama-8b", 8, 6_667, _batch(16, 2)),
    Row(_TORCHTITAN, "8B on 8, compiled, float8", _LIMITED, "llama-8b", 8, 8_532, _FLOAT8 | _batch(16, 2)),
    Row(_TORCHTITAN, "8B on 128, compiled", _LIMITED, "llama-8b", 128, 6_514, _batch(256, 2)),
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
    Row(_TORCHTITAN, "405B on 512, 8 x 8 x 8, 1F1B, float8", _LIMITED, "llama-70b", 512, 100, _CUBE | _FLOAT8 | _FULL),
    Row(
        _TORCHTITAN,
        "405B on 512, 8 x 8 x 8, interleaved, float8",
        _LIMITED,
        "llama-70b",
        512,
        128,
        _CUBE | _FLOAT8 | _FULL | {"pipeline": {"schedule": "interleaved", "stages_per_rank": 8}},
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
    """Planned and published tokens per second and GPU of each row."""
    for row in ROWS:
        predicted = row.predicted()
        name = f"{row.name}, {row.part}{'' if row.fitted else ' (kept out of fitting)'}"
        yield Figure.stated(name, predicted, "tokens/s", COMMAND, beside=row.tokens_per_s)
