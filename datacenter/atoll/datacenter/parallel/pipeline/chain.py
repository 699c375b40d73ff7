"""Forward passes through pipeline stages without gradients, one micro-batch after another.

PyTorch's schedules keep the outputs of all micro-batches until the end of a step, even without a backward pass; with
large vocabularies that takes more memory than training. Here a rank holds the outputs of one micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.parallel.pipeline.deal import Deal

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.float64, torch.int32)
_MAX_DIMS = 8


class Chain:
    """Passes micro-batches through the stages of all ranks along ``pp``. All ranks call it the same number of times.

    Every rank sends and receives in the order of (micro-batch, stage). The same order on all ranks cannot deadlock,
    however stages are assigned to ranks.

    Args:
        modules: stages of this rank by number.
        deal: assignment of the whole model.
        group: process group along ``pp``.
        device: device of this rank.
    """

    def __init__(
        self, modules: Mapping[int, nn.Module], deal: Deal, group: dist.ProcessGroup, device: torch.device
    ) -> None:
        self._modules, self._deal, self._group, self._device = modules, deal, group, device
        self._shapes: dict[int, tuple[torch.dtype, list[int]]] = {}
        self._shape_sent: set[int] = set()
        self._sent: tuple[dist.Work, Tensor] | None = None

    def __call__(self, tokens: Tensor, documents: Mapping[str, Tensor]) -> Tensor | tuple[Tensor, ...] | None:
        """Run this rank's stages on one micro-batch; all micro-batches of a chain have one shape.

        Args:
            tokens: input of the first stage.
            documents: further inputs of every stage, by name.

        Returns:
            The last stage's output; None on ranks that do not have it.

        Raises:
            TrainingError: if a stage returns anything but one tensor.
        """
        carried: Tensor | None = None
        for number, module in sorted(self._modules.items()):
            if number == 0:
                given = tokens
            elif carried is not None and number - 1 in self._modules:
                given = carried
            else:
                given = self._received(number)
            made: Tensor | tuple[Tensor, ...] = module(given, **documents)
            if number == self._deal.stages - 1:
                return made
            carried = _one(number, made)
            if number + 1 not in self._modules:
                self._send(number, carried)
        return None

    def close(self) -> None:
        """Wait until the last activations are sent."""
        if self._sent is not None:
            self._sent[0].wait()
            self._sent = None

    def _send(self, number: int, made: Tensor) -> None:
        """Send without waiting; at most one tensor is in flight."""
        self.close()
        made, to = made.contiguous(), self._deal.ranks[number + 1]
        if number not in self._shape_sent:
            shape = [_DTYPES.index(made.dtype), made.dim(), *made.shape]
            header = torch.tensor(shape + [0] * (_MAX_DIMS + 2 - len(shape)), device=self._device)
            dist.send(header, group=self._group, group_dst=to)
            self._shape_sent.add(number)
        work = dist.isend(made, group=self._group, group_dst=to)
        self._sent = None if work is None else (work, made)

    def _received(self, number: int) -> Tensor:
        source = self._deal.ranks[number - 1]
        if number not in self._shapes:
            header = torch.empty(_MAX_DIMS + 2, dtype=torch.int64, device=self._device)
            dist.recv(header, group=self._group, group_src=source)
            dtype, dims, *sizes = header.tolist()
            self._shapes[number] = _DTYPES[dtype], sizes[:dims]
        dtype, sizes = self._shapes[number]
        received = torch.empty(sizes, dtype=dtype, device=self._device)
        dist.recv(received, group=self._group, group_src=source)
        return received


def _one(number: int, made: object) -> Tensor:
    if isinstance(made, Tensor) and made.dtype in _DTYPES and made.dim() <= _MAX_DIMS:
        return made
    raise TrainingError(
        f"pipeline stage {number} returned {type(made).__name__}: [evaluation] passes one tensor of floating-point or "
        "whole numbers from stage to stage; leave it out, or have the blocks return one"
    )
