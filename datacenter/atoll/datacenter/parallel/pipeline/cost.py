"""Measure the cost of each block: run one block of each kind alone on this device, forward and backward."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.models.spec import ModelSpec

_WARM_UPS = 2
_RUNS = 5


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of the forward and backward pass of one micro-batch.

    Attributes:
        first: modules before the blocks.
        blocks: each block.
        last: modules after the blocks, without the loss.
    """

    first: float
    blocks: tuple[float, ...]
    last: float


def measure_costs(spec: ModelSpec, job: SiloJob, device: torch.device) -> Costs:
    """Measure on the first rank and broadcast to all; collective.

    Memory: the weights, gradients and activations of one block, uncut. Blocks of equal shapes are measured once.
    """
    with torch.device("meta"):
        module = spec.build()
    blocks = [f"{spec.blocks}.{number}" for number in spec.blocks_of(module)]
    names = [*spec.first, *blocks, *spec.last]
    seconds = torch.zeros(len(names), dtype=torch.float64, device=device)
    if dist.get_rank() == 0:
        seconds.copy_(torch.tensor(_measure_all(module, names, job, device), dtype=torch.float64))
    dist.broadcast(seconds, src=0)
    found = dict(zip(names, seconds.tolist(), strict=True))
    return Costs(
        sum(found[name] for name in spec.first),
        tuple(found[name] for name in blocks),
        sum(found[name] for name in spec.last),
    )


def _measure_all(module: nn.Module, names: list[str], job: SiloJob, device: torch.device) -> list[float]:
    inputs = _inputs(module, names, job)
    known: dict[str, float] = {}
    seconds = []
    for name in names:
        part = module.get_submodule(name)
        shapes = f"{type(part)} {[(key, value.shape) for key, value in part.named_parameters()]} {inputs[name]}"
        if shapes not in known:
            known[shapes] = _measure(part, inputs[name], device)
        seconds.append(known[shapes])
    return seconds


def _inputs(module: nn.Module, names: list[str], job: SiloJob) -> Mapping[str, tuple[Any, ...]]:
    """Return the inputs of each part, on the meta device."""
    seen: dict[str, tuple[Any, ...]] = {}
    for name in names:

        def keep(_: nn.Module, given: tuple[Any, ...], name: str = name) -> None:
            seen[name] = given

        module.get_submodule(name).register_forward_pre_hook(keep)
    shape = (job.batch.micro_batch, job.batch.sequence // job.mesh.cp)
    with torch.no_grad():
        module(torch.zeros(shape, dtype=torch.int64, device="meta"))
    return seen


def _measure(part: nn.Module, inputs: tuple[Any, ...], device: torch.device) -> float:
    """Return the median seconds of a forward and backward pass over arbitrary values."""
    real = copy.deepcopy(part).to_empty(device=device)
    for parameter in real.parameters():
        nn.init.normal_(parameter, std=0.02)
    times = []
    for _ in range(_WARM_UPS + _RUNS):
        given = tree_map_only(Tensor, lambda tensor: _filled(tensor, device), inputs)
        _wait(device)
        begun = perf_counter()
        outputs: Tensor = real(*given)
        outputs.sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        _wait(device)
        times.append(perf_counter() - begun)
    return median(times[_WARM_UPS:])


def _filled(tensor: Tensor, device: torch.device) -> Tensor:
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
    return torch.randn(tensor.shape, dtype=tensor.dtype, device=device, requires_grad=True)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
