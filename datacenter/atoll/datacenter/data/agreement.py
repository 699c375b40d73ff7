"""Share bookmarks of streamed text between ranks, each of which knows some of them."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist

from atoll.datacenter.data.batches import Agree


def largest_over(group: dist.ProcessGroup, device: torch.device) -> Agree:
    """Return a function that takes each element's maximum over the ranks of a group; collective, on ``device``."""
    return partial(_largest, group, device)


def _largest(group: dist.ProcessGroup, device: torch.device, found: torch.Tensor) -> torch.Tensor:
    moved = found.to(device, copy=True)
    dist.all_reduce(moved, dist.ReduceOp.MAX, group=group)
    return moved.cpu()
