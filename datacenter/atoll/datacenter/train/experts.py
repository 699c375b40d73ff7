"""Balance of experts: how evenly a step's tokens were spread, and the bias that evens them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atoll.datacenter.models.moe import RoutedExperts, routed_of

if TYPE_CHECKING:
    from atoll.datacenter.mesh import Meshes


@torch.no_grad()
def settle_experts(parts: Sequence[nn.Module], meshes: Meshes, device: torch.device) -> dict[str, Tensor]:
    """Sum the loads of all ranks, adjust the biases, and reset the loads; once after each step. Collective.

    Wang et al. 2024 (algorithm 1): the bias of an expert with more choices than the mean of the global batch falls by
    ``bias_rate``, that of one with fewer rises. Loads are integers, so the biases stay equal on every rank in any
    layout.

    Args:
        parts: this rank's stages.
        meshes: device meshes of the world.
        device: device of the loads.

    Returns:
        int64 ``[experts]`` on the device: choices of the global batch, by name of the ``RoutedExperts`` in this rank's
        stages.
    """
    found = dict(part for module in parts for part in routed_of(module))
    if not found:
        return {}
    loads = torch.cat([_taken(routed, device) for routed in found.values()])
    dist.all_reduce(loads, group=meshes.loss.get_group())
    pieces = loads.split([routed.section.experts for routed in found.values()])  # type: ignore[no-untyped-call]  # torch leaves it untyped
    for routed, load in zip(found.values(), pieces, strict=True):
        if routed.bias is not None:
            mean = load.sum() / load.numel()
            routed.bias += routed.section.bias_rate * torch.sign(mean - load)
    return dict(zip(found, pieces, strict=True))


def busiest(loads: dict[str, Tensor], meshes: Meshes, device: torch.device) -> Tensor:
    """Return choices of the busiest expert over those of the mean expert, maximum over layers; collective over stages.

    Returns:
        float64 scalar on the device, at least 1; 0 without experts.
    """
    worst = torch.zeros((), dtype=torch.float64, device=device)
    for load in loads.values():
        worst = torch.maximum(worst, (load.max() * load.numel() / load.sum()).to(worst))
    if meshes.dims.pp > 1:
        dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=meshes.dense["pp"].get_group())
    return worst


def _taken(routed: RoutedExperts, device: torch.device) -> Tensor:
    load, routed.load = routed.load, None
    return torch.zeros(routed.section.experts, dtype=torch.int64, device=device) if load is None else load
