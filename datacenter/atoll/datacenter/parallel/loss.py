"""The loss of a job: from whole logits, or in chunks of tokens from hidden states and the output matrix."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel

from atoll.datacenter.job.loss_chunks import compiles_loss, loss_chunk_tokens
from atoll.datacenter.models.compiled import compiled
from atoll.datacenter.parallel.cross_entropy import chunked_cross_entropy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import Meshes
    from atoll.datacenter.models.spec import ModelSpec


@dataclass(frozen=True)
class Loss:
    """Computes the loss of a micro-batch from what the model, or its last stage, returns.

    Attributes:
        spec: spec of the model.
        chunk: tokens of one chunk; the model then returns ``(hidden, matrix)``, see ``hand_on``. None: whole logits.
        classes: group over which the matrix is divided along the classes, if the loss is computed in chunks.
        divided: whether logits are divided along the classes.
        compiles: whether the loss is compiled: float32 copies of the logits then exist only inside its kernels.
    """

    spec: ModelSpec
    chunk: int | None
    classes: dist.ProcessGroup | None
    divided: bool
    compiles: bool = False

    @classmethod
    def of(cls, job: SiloJob, spec: ModelSpec, meshes: Meshes) -> Loss:
        """Return the loss of a job on this rank."""
        chunk, parts = chunk_of(job, spec, meshes), meshes.dims.tp
        classes = meshes.dense["tp"].get_group() if chunk is not None and parts > 1 else None
        divided = chunk is None and parts > 1 and job.tensor_parallel.loss
        return cls(spec, chunk, classes, divided, compiles_loss(job, tp=parts))

    def __call__(self, outputs: Any, labels: Tensor, divisor: float | Tensor) -> Tensor:
        """Return the sum of the losses over a divisor, float32 scalar.

        Args:
            outputs: what the model returned.
            labels: int64; -100 does not count.
            divisor: counted tokens of the global batch over the loss scale.
        """
        if self.chunk is None:
            whole = compiled(self.spec.loss) if self.compiles else self.spec.loss
            summed: Tensor = whole(outputs, labels)
            return summed / divisor
        hidden, matrix = outputs
        return chunked_cross_entropy(
            hidden,
            matrix,
            labels,
            scale=1 / divisor,
            chunk=self.chunk,
            classes=self.classes,
            compiles=self.compiles,
        )

    def context(self) -> AbstractContextManager[object]:
        """Return the context of loss and backward pass."""
        return loss_parallel() if self.divided else nullcontext()


def chunk_of(job: SiloJob, spec: ModelSpec, meshes: Meshes) -> int | None:
    """Return the tokens of one chunk of the loss; None if logits are computed whole."""
    dims = meshes.dims
    return loss_chunk_tokens(job, micro_batch=job.batch.micro_batch, cp=dims.cp, tp=dims.tp, head=spec.head is not None)


def hand_on(head: nn.Linear, tp: DeviceMesh | None, between: Placement) -> None:
    """Make the output projection return ``(hidden states, its matrix)`` instead of logits, in place.

    The matrix is an output of the model, so that FSDP and DDP know that it is used, and when its gradient is complete.

    Args:
        head: on the meta device; without a bias.
        tp: device mesh of tensor parallelism, which divides the matrix along the classes.
        between: placement of the incoming hidden states over ``tp``.
    """
    if tp is not None:
        placed = distribute_tensor(head.weight, tp, [Shard(0)], src_data_rank=None)
        head.weight = nn.Parameter(placed, requires_grad=head.weight.requires_grad)

    def handed_on(hidden: Tensor) -> tuple[Tensor, Tensor]:
        weight: Tensor = head.weight
        if tp is not None:
            hidden, weight = _local_parts(hidden, weight, tp, between)
        if torch.is_autocast_enabled(hidden.device.type):
            dtype = torch.get_autocast_dtype(hidden.device.type)
            hidden, weight = hidden.to(dtype), weight.to(dtype)
        return _handed(hidden), _handed(weight)

    head.forward = handed_on  # type: ignore[method-assign,assignment]  # only of this module; its hooks stay


def _local_parts(hidden: Tensor, weight: Tensor, tp: DeviceMesh, between: Placement) -> tuple[Tensor, Tensor]:
    """Gather the hidden states, whose gradient is then a sum over ranks; take this rank's rows of the matrix."""
    placed = hidden if isinstance(hidden, DTensor) else DTensor.from_local(hidden, tp, [between], run_check=False)
    whole = placed.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
    return whole, weight.to_local() if isinstance(weight, DTensor) else weight


def _handed(tensor: Tensor) -> Tensor:
    """Return the same values; a frozen matrix stays frozen, so that its gradient is not computed."""
    found: Tensor = _Handed.apply(tensor) if tensor.requires_grad else tensor  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found


class _Handed(torch.autograd.Function):
    """The same tensor from a separate autograd node: pipelines detach outputs in place, which views do not allow."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        del ctx
        return tensor.data

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Tensor:
        del ctx
        return outer[0]
