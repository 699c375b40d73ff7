"""Optimiser of a job, gradient norm over all ranks, and learning rate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import cos, pi
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from atoll.datacenter.train.muon import MuonAdamW

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from atoll.datacenter.job.training import OptimiserSection, ScheduleSection


def make_optimiser(
    parameters: Iterable[nn.Parameter], section: OptimiserSection, hidden: Iterable[nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """Make the job's optimiser over the trained parameters; matrices decay, vectors do not.

    AdamW is fused: with DTensors, PyTorch's default loop over parameters takes more time on the host than the update
    takes on the GPU. One fused operation takes tensors of one mesh.

    Args:
        parameters: all parameters.
        section: the job's ``[optimiser]``.
        hidden: the parameters that Muon trains, with ``name = "muon"``; see ``muon.is_hidden_matrix``.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    by_muon = {id(parameter) for parameter in hidden} if section.name == "muon" else set()
    groups = [
        {"params": together, "weight_decay": section.weight_decay if decays else 0.0}
        for (decays, _), together in _grouped(one for one in trained if id(one) not in by_muon).items()
    ] or [{"params": []}]
    if section.name == "muon":
        return MuonAdamW([one for one in trained if id(one) in by_muon], groups, section)
    if section.name == "sgd":
        return torch.optim.SGD(groups, lr=section.lr, momentum=section.momentum)
    return torch.optim.AdamW(groups, lr=section.lr, betas=section.betas, eps=section.epsilon, fused=True)


def _grouped(parameters: Iterable[nn.Parameter]) -> dict[tuple[bool, DeviceMesh | None], list[nn.Parameter]]:
    """Group trained parameters by whether they decay and by mesh."""
    found: dict[tuple[bool, DeviceMesh | None], list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        if parameter.requires_grad:
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            found[parameter.dim() >= 2, mesh].append(parameter)
    return found


def lr_at(step: int, steps: int, peak: float, section: ScheduleSection) -> float:
    """Return the learning rate of a step.

    Args:
        step: number of the step, from 0.
        steps: steps of the whole job.
        peak: the job's ``optimiser.lr``.
        section: schedule of the learning rate.
    """
    if step < section.warmup_steps:
        return peak * (step + 1) / section.warmup_steps
    falling = section.decay_steps or max(1, steps - section.warmup_steps)
    done = min(1.0, max(0, step - (steps - falling)) / falling)  # a silo in a federation continues after its last step
    match section.decay:
        case "none":
            share = 1.0
        case "linear":
            share = 1.0 - (1.0 - section.floor) * done
        case "cosine":
            share = section.floor + (1.0 - section.floor) * (1.0 + cos(pi * done)) / 2
    return peak * share


@torch.no_grad()
def gradient_norm(parameters: Sequence[nn.Parameter], stages: DeviceMesh | None) -> Tensor:
    """Return the 2-norm of the gradient of all parameters of the model, the same on every rank.

    Args:
        parameters: parameters of this rank, their gradients already summed over data-parallel ranks.
        stages: mesh of the axis ``pp`` if the model is cut into stages, whose parameters are disjoint.

    Returns:
        float32 scalar; not finite if any gradient is not.
    """
    squares = [_norm(together).square() for together in _by_mesh(parameters).values()]
    device = squares[0].device if squares else torch.device("cpu")
    total = torch.stack(squares).sum() if squares else torch.zeros((), device=device)
    if stages is not None:
        dist.all_reduce(total, group=stages.get_group())
    return total.sqrt()


def _norm(parameters: list[nn.Parameter]) -> Tensor:
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


@torch.no_grad()
def clip(parameters: Sequence[nn.Parameter], norm: Tensor, limit: float) -> None:
    """Scale gradients in place so that their norm is at most the limit (Pascanu et al. 2013, algorithm 1)."""
    for together in _by_mesh(parameters).values():
        torch.nn.utils.clip_grads_with_norm_(together, limit, norm)


def _by_mesh(parameters: Iterable[nn.Parameter]) -> dict[DeviceMesh | None, list[nn.Parameter]]:
    """Group parameters whose gradients one operation can take together."""
    found: dict[DeviceMesh | None, list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        if (gradient := parameter.grad) is not None:
            found[gradient.device_mesh if isinstance(gradient, DTensor) else None].append(parameter)
    return found
