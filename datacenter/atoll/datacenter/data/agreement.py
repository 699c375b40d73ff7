"""How ranks that each know some bookmarks come to know all."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist

from atoll.datacenter.data.batches import Agree


def largest_over(group: dist.ProcessGroup, device: torch.device) -> Agree:
    """The largest of each element over the ranks of a group; collective, tensors travel on ``device``."""
    return partial(_largest, group, device)


def _largest(group: dist.ProcessGroup, device: torch.device, found: torch.Tensor) -> torch.Tensor:
    moved = found.to(device, copy=True)
    dist.all_reduce(moved, dist.ReduceOp.MAX, group=group)
    return moved.cpu()
