"""Run one step of a layout without hardware, and compare what is counted with what was predicted.

The world is PyTorch's ``fake`` backend: its collectives return their inputs at once. The model is cut by the same code
as for training, on the meta device; its parameters and everything computed from them are fake tensors, which have
shapes but no memory. Passes are run with one micro-batch and with two; larger numbers are extrapolated.

The optimiser is not run (its kernels do not support fake tensors), so what it sends is left out of the comparison, and
its states are counted from the shards. Norms are
those of the CPU, several operators that keep float32 copies: the prediction compared here is for those.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.mesh import Meshes
from atoll.datacenter.models import spec_of
from atoll.datacenter.models.extra import divide_extra_losses
from atoll.datacenter.parallel.apply import cut
from atoll.datacenter.parallel.loss import Loss
from atoll.datacenter.parallel.passes import PlainPasses
from atoll.datacenter.parallel.tensor import tie
from atoll.datacenter.plan.counting import Counting, Counts
from atoll.datacenter.plan.layout import MASTER_BYTES, Task, job_with
from atoll.datacenter.plan.memory import peak_of_passes
from atoll.datacenter.plan.stages import shares
from atoll.datacenter.plan.traffic import messages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.models.spec import ModelSpec
    from atoll.datacenter.plan.layout import Layout

BYTES_WITHIN = 0.02
MEMORY_WITHIN = 0.10


@dataclass(frozen=True, slots=True)
class Compared:
    """A predicted and a counted number.

    Attributes:
        what: name of the number.
        predicted: predicted bytes.
        counted: counted bytes.
        within: allowed difference, relative to the counted bytes.
    """

    what: str
    predicted: float
    counted: float
    within: float

    @property
    def off(self) -> float:
        """Relative difference; infinite if something was predicted and nothing counted."""
        if self.counted == 0:
            return 0.0 if self.predicted == 0 else float("inf")
        return self.predicted / self.counted - 1

    @property
    def good(self) -> bool:
        """Whether the difference is within its bound."""
        return abs(self.off) <= self.within


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch; only its shapes matter."""

    tokens: Tensor
    labels: Tensor
    documents: None = None
    positions: None = None


def verify(task: Task, layout: Layout) -> list[Compared]:
    """Count one step of the first rank and compare collective bytes by kind, and memory.

    Afterwards this process has no world; PyTorch's caches allow one verification per process.

    Raises:
        LayoutError: if the layout cannot be run on the fake backend.
    """
    if (reason := refusal(task, layout)) is not None:
        raise LayoutError(reason)
    job = _eager(job_with(task.job, layout))
    unfused = Task.of(job, fused_norm=False)
    with fake_world(layout.dims.world_size):
        counts = _count(job, unfused, layout)
    share = shares(layout, job.model.layers)[0]
    predicted: Counter[str] = Counter()
    for message in messages(unfused, layout, share):
        if message.when != "update":
            predicted[message.kind] += round(message.total.value)
    kinds = sorted({*predicted, *counts.bytes_by_kind})
    found = [Compared(kind, predicted[kind], counts.bytes_by_kind[kind], BYTES_WITHIN) for kind in kinds]
    memory = peak_of_passes(unfused, layout, share).memory.allocated
    return [*found, Compared("memory", memory, counts.peak_bytes, MEMORY_WITHIN)]


def refusal(task: Task, layout: Layout) -> str | None:
    """Return why a layout cannot be run on the fake backend; None if it can."""
    if layout.plain_ddp and layout.dims.world_size > 1:
        return "ddp cannot be verified: PyTorch's reducer needs real memory; it sends the bytes of its gradients"
    if layout.dims.ep > 1:
        return "expert parallel cannot be verified: the number of rows sent is known only from real tokens"
    if task.job.data.document_masks:
        return "document masks cannot be verified: on a CPU their scores are computed in another way than on a GPU"
    if layout.dims.pp > 1:
        return "pipelines cannot be verified: their schedules wait for real answers; see docs/datacenter/planning.md"
    if layout.checkpointing == "budget":
        kept = task.job.memory.budget
        return f'checkpointing = "budget" ({kept}) cannot be verified: what is kept is the compiler\'s choice'
    return None


def _eager(job: SiloJob) -> SiloJob:
    """Return the job without the compiler, which does not support counting; the collectives are the same."""
    return job.model_copy(update={"memory": job.memory.model_copy(update={"compile": False})})


@contextmanager
def fake_world(ranks: int) -> Iterator[None]:
    """Make a world of this many ranks with this process as rank 0; nothing is sent."""
    if dist.is_initialized():
        raise LayoutError("this process is already in a world: verify in a process of its own")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True, slots=True)
class Counted:
    """Memory and traffic of one step of this rank."""

    bytes_by_kind: Counter[str]
    peak_bytes: int


def _count(job: SiloJob, task: Task, layout: Layout) -> Counted:
    device = torch.device("cpu")
    meshes = Meshes.build(layout.dims, device.type)
    spec = spec_of(job.model)
    with torch.device("meta"):
        module = spec.build()
    cut(module, job, spec, meshes)
    with FakeTensorMode(allow_non_fake_inputs=True):
        module.to_empty(device=device)
        tie(module, spec)
        counting = Counting()
        counting.watch(list(module.parameters()))
        passes = PlainPasses(module, Loss.of(job, spec, meshes), job, device)
        once = _step(passes, counting, task, layout, 1)
        counts = _step(passes, counting, task, layout, 2) if layout.micro_batches > 1 else once
    moved = _extrapolated(once, counts, layout.micro_batches)
    return Counted(moved, counts.peak_bytes + _state_bytes(module, spec, task))


def _step(passes: PlainPasses, counting: Counting, task: Task, layout: Layout, micro_batches: int) -> Counts:
    with counting:
        counting.counts.forget_peak()
        divide_extra_losses(passes.parts, 1.0, passes.device)
        passes([_batch(task, layout) for _ in range(micro_batches)], 1.0)
        for parameter in passes.module.parameters():
            parameter.grad = None
    return counting.counts.taken()


def _batch(task: Task, layout: Layout) -> Batch:
    shape = (layout.micro_batch, task.job.batch.sequence // layout.dims.cp)
    return Batch(torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64))


def _extrapolated(once: Counts, twice: Counts, micro_batches: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for call in {*once.whole_bytes, *twice.whole_bytes}:
        one, two = once.whole_bytes[call], twice.whole_bytes[call]
        found[call.kind] += one + (two - one) * max(0, micro_batches - 1)
    return found


def _state_bytes(module: nn.Module, spec: ModelSpec, task: Task) -> int:
    """Bytes of the optimiser's states; Muon keeps one number less for an element of the blocks' matrices."""
    matrices: set[int] = set()
    if task.job.optimiser.name == "muon":
        inside = (parameter for block in spec.blocks_of(module).values() for parameter in block.parameters())
        matrices = {id(parameter) for parameter in inside if parameter.dim() == 2}
    trained = (parameter for parameter in module.parameters() if parameter.requires_grad)
    return sum(
        _local(parameter).numel() * MASTER_BYTES * (task.state_elements - (id(parameter) in matrices))
        for parameter in trained
    )


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
