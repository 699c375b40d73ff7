"""Communication hooks: each replaces a bucket of gradients by their sum over ranks, exact or approximate."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from atoll.datacenter.compression.exchange import all_gather, gather_sum, scatter_sum
from atoll.datacenter.compression.residuals import Residuals, pieces
from atoll.datacenter.compression.traffic import Traffic

if TYPE_CHECKING:
    from torch import nn
    from torch._C._distributed_c10d import GradBucket

    from atoll.datacenter.compression.encoders import Encoder
    from atoll.datacenter.compression.residuals import Flat


class GradientHook(Protocol):
    """Sums one rank's gradients with those of the other ranks."""

    traffic: Traffic

    def reduce(self, bucket: GradBucket) -> None:
        """Replace the bucket by its sum over ranks. Collective; buckets come in the same order on every rank."""
        ...

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return what this rank keeps from step to step; empty for hooks without state."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state, before the first step."""
        ...


class HalfHook:
    """Sums in half precision, which halves the bytes; no error feedback.

    PyTorch's own hooks divide by the number of ranks first, to avoid overflow. Here gradients are already parts of a
    mean, so dividing would lose log2(N) bits to underflow. And gloo does not support PyTorch's bfloat16 hook.

    Args:
        dtype: float16 (11 bits of precision, up to 65504) or bfloat16 (8 bits, float32's range).
        group: process group of the replicas.
    """

    def __init__(self, dtype: torch.dtype, group: dist.ProcessGroup) -> None:
        self._dtype, self._group = dtype, group
        self.traffic = Traffic(group.size())

    def reduce(self, bucket: GradBucket) -> None:
        """See ``GradientHook``."""
        buffer = bucket.buffer()
        half = buffer.to(self._dtype)
        dist.all_reduce(half, group=self._group)
        buffer.copy_(half)
        self.traffic.plain(buffer.nbytes)
        self.traffic.all_reduce(half.nbytes)

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return nothing: this hook has no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Do nothing: this hook has no state."""
        del state


class FeedbackHook:
    """Sends encoded blocks with error feedback.

    Args:
        parameters: the trained ones, by name.
        group: process group of the replicas.
        encoder: encoder of the blocks.
        scatter: use ``exchange.scatter_sum``, for messages that are not shorter than 2 / N of the gradient.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], group: dist.ProcessGroup, encoder: Encoder, *, scatter: bool
    ) -> None:
        self._group, self._encoder = group, encoder
        self._sum = scatter_sum if scatter else gather_sum
        self.residuals = Residuals(parameters, encoder.block)
        self.traffic = Traffic(group.size())

    def reduce(self, bucket: GradBucket) -> None:
        """See ``GradientHook``."""
        flat = self.residuals.add(bucket)
        self.traffic.plain(bucket.buffer().nbytes)
        put_back(bucket, flat, self._sum(flat, self._encoder, self._group, self.traffic))

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return the residuals."""
        return self.residuals.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the residuals."""
        self.residuals.load_state_dict(state)


class LargestHook:
    """Sends the largest elements of each parameter by absolute value, with error feedback (Lin et al. 2018, section 3).

    A message is an int32 index and a float32 value for each element sent; every rank receives all messages.

    Args:
        parameters: the trained ones, by name.
        group: process group of the replicas.
        keep: share of elements sent, rounded up to at least one of each parameter.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], group: dist.ProcessGroup, keep: float) -> None:
        self._group, self._keep = group, keep
        self.residuals = Residuals(parameters, block=1)
        self.traffic = Traffic(group.size())

    def reduce(self, bucket: GradBucket) -> None:
        """See ``GradientHook``."""
        flat = self.residuals.add(bucket)
        values = flat.values.view(-1)
        places = self._largest(flat)
        message = torch.stack((places.to(torch.int32), values[places].view(torch.int32)))
        everybodys = message.new_empty(self.traffic.ranks * 2, message.shape[1])
        all_gather(everybodys, message, group=self._group)
        values[places] = 0.0
        total = torch.zeros_like(values)
        for one in everybodys.chunk(self.traffic.ranks):
            total.index_add_(0, one[0].to(torch.int64), one[1].view(torch.float32))
        self.traffic.plain(bucket.buffer().nbytes)
        self.traffic.all_gather(message.nbytes)
        put_back(bucket, flat, total)

    def _largest(self, flat: Flat) -> Tensor:
        """Return the indices in the bucket of the elements to send; int64, without repeats."""
        found, start = [], 0
        for part in flat.parts:
            found.append(part.abs().topk(ceil(self._keep * part.numel()), sorted=False).indices + start)
            start += part.numel()
        return torch.cat(found)

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return the residuals."""
        return self.residuals.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the residuals."""
        self.residuals.load_state_dict(state)


def put_back(bucket: GradBucket, flat: Flat, total: Tensor) -> None:
    """Write sums, laid out like ``flat.values``, into a bucket."""
    for gradient, summed in zip(pieces(bucket), flat.parts_of(total), strict=True):
        gradient.copy_(summed)
