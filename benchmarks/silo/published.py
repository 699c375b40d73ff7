"""The planner's step times and memory compared with published figures for H100s, each with the data sheet of its part.

The rows and their sources are in ``published_rows``. The shares of rates that a step reaches (``plan.step_time``) were
fitted to the rows marked ``fitted``; the others were held out. Nothing was fitted to memory.

torchtitan publishes what its allocator reserved (``max_reserved``). The same here is the plan's fullest moment over
``1 - FRAGMENTED``, without the device's own context, for torchtitan's program of December 2024. It differs from
Atoll's in three points, which ``planned_gib`` counts: its loss is of whole logits and not compiled; its selective
recomputation keeps every second matrix product of a block, where Atoll's keeps all; and FSDP gathers embedding and
output in one unit and keeps the last block gathered between the passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from atoll.datacenter.job import SiloJob, load_job
from atoll.datacenter.machine import DATA_SHEETS
from atoll.datacenter.plan.layout import Task, layout_of
from atoll.datacenter.plan.prediction import fullest, predict_layout
from atoll.datacenter.plan.sharding import outside_blocks, unit_elements
from atoll.datacenter.plan.step_time import FRAGMENTED, Machine
from benchmarks.figures import Figure

COMMAND = "python -m benchmarks.silo published"
WITHIN = 0.15
"""Largest relative distance from the published time."""
MEMORY_WITHIN = 0.10
"""Largest relative distance from the published memory."""
GIB = 2**30
_EXAMPLES = Path(__file__).parents[2] / "examples" / "silo"
_BFLOAT16_BYTES = 2


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
        changes: as published.
        fitted: whether the shares were fitted to this row.
        target: whether the planner's target names this row; others of the same tables are compared without a target.
        reserved_gib: published memory that the allocator reserved, on the fullest GPU; None if it was not published.
    """

    source: str
    what: str
    part: str
    example: str
    ranks: int
    tokens_per_s: float
    changes: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    fitted: bool = False
    target: bool = True
    reserved_gib: float | None = None

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

    @cached_property
    def predicted(self) -> float:
        """The planned tokens per second and GPU."""
        job = self.job()
        machine = Machine.of(DATA_SHEETS[self.part])
        return predict_layout(Task.of(job), layout_of(job, self.ranks), machine).tokens_per_s.value

    @cached_property
    def planned_gib(self) -> float:
        """The planned memory of the fullest GPU as the allocator reserves it, for torchtitan's program."""
        compiled, tp = self.job().memory.compile, self.job().mesh.tp
        # a loss that is divided over tp is eager in any case; without tp it is compiled together with the blocks
        job = self.job(compile=compiled and tp > 1, loss_chunk_tokens=0)
        size = fullest(Task.of(job), layout_of(job, self.ranks)).memory.size
        if job.memory.checkpointing == "selective":
            size -= _recomputed_products(job, compiled=compiled)
        if job.mesh.pp == 1:
            size += self._gathered_longer(job)
        return size / (1 - FRAGMENTED) / GIB

    def _gathered_longer(self, job: SiloJob) -> float:
        """Bytes of the last block, which stays gathered, and of the output, which is gathered with the embedding."""
        task, layout = Task.of(job), layout_of(job, self.ranks)
        output = outside_blocks(task, layout.dims.tp, first=False, last=True)
        return (unit_elements(task, layout) + output).value * _BFLOAT16_BYTES


def _recomputed_products(job: SiloJob, *, compiled: bool) -> int:
    """Bytes of matrix products that torchtitan recomputes and the plan keeps, without TP.

    These are keys, attention's output and ``w3``. No backward pass needs ``w2``'s result: the compiler leaves it out.
    """
    model, batch = job.model, job.batch
    width = model.dim * model.kv_heads // model.heads + model.dim + model.ffn_dim
    width += model.dim if compiled else 0
    return model.layers * batch.micro_batch * batch.sequence * width * _BFLOAT16_BYTES


def run(_smoke: bool) -> Iterator[Figure]:
    """Planned and published tokens per second and GPU of each row, and memory where it was published."""
    from benchmarks.silo.published_rows import ROWS  # noqa: PLC0415  # the rows are made of this module's class

    for row in ROWS:
        yield from _figures(row)


def _figures(row: Row) -> Iterator[Figure]:
    name = f"{row.name}, {row.part}{'' if row.fitted else ' (kept out of fitting)'}"
    yield _compared(name, row.predicted, "tokens/s", row.tokens_per_s, WITHIN if row.target else None)
    if row.reserved_gib is not None:
        share = MEMORY_WITHIN if row.target else None
        yield _compared("  memory", row.planned_gib, "GiB", row.reserved_gib, share)


def _compared(name: str, value: float, unit: str, published: float, share: float | None) -> Figure:
    if share is None:
        return Figure.stated(name, value, unit, COMMAND, beside=published)
    return Figure.near(name, value, unit, COMMAND, other=published, share=share)
