"""Sum DDP's gradients. DDP's default is to average, which is wrong for unequal shares of a batch."""

# DDP compares a hook's annotations with the classes themselves: no ``from __future__ import annotations`` here.

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket


def sum_hook(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """All-reduce a bucket of gradients without dividing it."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    if work is None:
        raise RuntimeError("this rank is not in the group that its gradients are summed over")
    summed: torch.futures.Future[Tensor] = work.get_future().then(lambda future: future.value()[0])
    return summed
