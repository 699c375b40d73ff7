"""PowerSGD: the gradient of a matrix as a product of two thin matrices, found by one power iteration a step.

Vogels et al. 2019, algorithms 1 and 2. PyTorch's own PowerSGD hook is not enough here. It starts all-reduces from
callbacks, whose order over gloo is not guaranteed: with several buckets it hangs. It keeps its state by bucket, which a
checkpoint cannot carry to a new process. And it averages, where a sum is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from atoll.datacenter.compression.hooks import put_back
from atoll.datacenter.compression.residuals import Residuals
from atoll.datacenter.compression.traffic import Traffic

if TYPE_CHECKING:
    from torch import nn
    from torch._C._distributed_c10d import GradBucket

_STEPS = "steps"
_FACTOR, _RESIDUAL = "factor.", "residual."


@dataclass(frozen=True)
class _Matrix:
    """A parameter of a bucket that is worth approximating.

    Attributes:
        name: name of the parameter.
        values: ``[rows, columns]``: gradient plus residual; becomes the residual.
        total: same shape; becomes the sum over ranks.
    """

    name: str
    values: Tensor
    total: Tensor


class PowerSgdHook:
    """Rank-r approximations with error feedback and warm start.

    A matrix of n rows and m columns costs r (n + m) float32; parameters that would not become smaller are sent whole.

    Args:
        parameters: the trained ones, by name.
        group: process group of the replicas.
        rank: r.
        start: steps in which everything is sent whole; gradients change most in the first steps.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], group: dist.ProcessGroup, rank: int, start: int) -> None:
        self._group, self._rank, self._start = group, rank, start
        self._shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        self._factors: dict[str, Tensor] = {}
        self._steps = 0
        self.residuals = Residuals(parameters, block=1)
        self.traffic = Traffic(group.size())

    def reduce(self, bucket: GradBucket) -> None:
        """See ``GradientHook``."""
        self.traffic.plain(bucket.buffer().nbytes)
        if self._steps < self._start:
            self._all_reduce([bucket.buffer()])
        else:
            self._approximate(bucket)
        self._steps += bucket.is_last()

    def state_dict(self) -> dict[str, Tensor]:
        """Return residuals, right factors, and the number of steps."""
        found = {_RESIDUAL + name: value for name, value in self.residuals.state_dict().items()}
        found |= {_FACTOR + name: value for name, value in self._factors.items()}
        return {**found, _STEPS: torch.tensor(self._steps)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state."""
        self._steps = int(state[_STEPS])
        self._factors = {
            name.removeprefix(_FACTOR): v.detach() for name, v in state.items() if name.startswith(_FACTOR)
        }
        self.residuals.load_state_dict(
            {name.removeprefix(_RESIDUAL): value for name, value in state.items() if name.startswith(_RESIDUAL)}
        )

    def _approximate(self, bucket: GradBucket) -> None:
        flat = self.residuals.add(bucket)
        total = torch.zeros_like(flat.values)
        matrices, plain = [], []
        for name, values, sums in zip(flat.names, flat.parts, flat.parts_of(total), strict=True):
            rows = self._rows(name)
            if rows is None:
                sums.copy_(values)
                values.zero_()
                plain.append(sums)
            else:
                matrices.append(_Matrix(name, values.view(rows, -1), sums.view(rows, -1)))
        lefts = [matrix.values @ self._factor(matrix) for matrix in matrices]
        self._all_reduce([*lefts, *plain])
        lefts = [torch.linalg.qr(left).Q for left in lefts]
        rights = [matrix.values.T @ left for matrix, left in zip(matrices, lefts, strict=True)]
        for matrix, left, right in zip(matrices, lefts, rights, strict=True):
            matrix.values.sub_(left @ right.T)
        self._all_reduce(rights)
        for matrix, left, right in zip(matrices, lefts, rights, strict=True):
            torch.mm(left, right.T, out=matrix.total)
            self._factors[matrix.name] = right
        put_back(bucket, flat, total)

    def _rows(self, name: str) -> int | None:
        """Return the rows of a parameter seen as a matrix; None if the factors would not be smaller."""
        shape = self._shapes[name]
        elements = torch.Size(shape).numel()
        if len(shape) < 2 or self._rank * (shape[0] + elements // shape[0]) >= elements:
            return None
        return shape[0]

    def _factor(self, matrix: _Matrix) -> Tensor:
        """Return orthonormal ``[columns, rank]``: the last right factor, or a random one equal on all ranks."""
        columns = matrix.values.shape[1]
        if matrix.name not in self._factors:
            seed = int.from_bytes(hashlib.blake2b(matrix.name.encode(), digest_size=8).digest(), "little") >> 1
            drawn = torch.randn(columns, self._rank, generator=torch.Generator().manual_seed(seed))
            self._factors[matrix.name] = drawn
        factor: Tensor = torch.linalg.qr(self._factors[matrix.name].to(matrix.values)).Q
        return factor

    def _all_reduce(self, tensors: Iterable[Tensor]) -> None:
        """Sum over ranks in place, in one collective."""
        parts = list(tensors)
        if not parts:
            return
        message = torch.cat([part.flatten() for part in parts])
        dist.all_reduce(message, group=self._group)
        self.traffic.all_reduce(message.nbytes)
        for part, summed in zip(parts, torch.split(message, [part.numel() for part in parts]), strict=True):
            part.copy_(summed.view_as(part))
