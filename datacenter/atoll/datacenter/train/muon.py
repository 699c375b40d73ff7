"""Muon for the matrices of the blocks, AdamW for everything else, as one optimiser.

Muon replaces a matrix's momentum by the nearest matrix with orthogonal rows or columns (Jordan 2024, Liu et al. 2025,
arXiv:2502.16982), so it needs the whole matrix. Momentum and weights stay sharded; each matrix is gathered once in a
step, in bfloat16, orthogonalised on every rank, and each rank applies its part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from atoll.datacenter.mesh.shards import local_shard

if TYPE_CHECKING:
    from atoll.datacenter.job.training import OptimiserSection

_RMS = "match_rms_adamw"
"""Updates get the root mean square of AdamW's, so that both share one learning rate (Liu et al. 2025, section 2.2)."""
_COEFFICIENTS, _ITERATIONS, _EPSILON = (3.4445, -4.7750, 2.0315), 5, 1e-7
"""Settings of the Newton-Schulz iteration, the defaults of ``torch.optim.Muon``."""


class MuonAdamW(torch.optim.Optimizer):
    """One optimiser over both kinds of parameters; states are ``momentum_buffer``, or AdamW's.

    Args:
        matrices: trained by Muon; each of two dims, plain or ``DTensor``.
        others: AdamW's parameter groups.
        section: learning rate, decay, moments.
    """

    def __init__(
        self, matrices: Sequence[nn.Parameter], others: Iterable[dict[str, Any]], section: OptimiserSection
    ) -> None:
        settings = {"lr": section.lr, "weight_decay": section.weight_decay, "momentum": section.muon_momentum}
        super().__init__([{"params": list(matrices)}], settings)
        groups = list(others) or [{"params": []}]
        self._adamw = torch.optim.AdamW(groups, lr=section.lr, betas=section.betas, eps=section.epsilon, fused=True)
        self.param_groups += self._adamw.param_groups

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all parameters that have a gradient; collective over the ranks that shard a matrix.

        Raises:
            ValueError: for a closure, which is not supported.
        """
        if closure is not None:
            raise ValueError("a closure is not supported")
        matrices, *others = self.param_groups
        for parameter in matrices["params"]:
            if parameter.grad is not None:
                self._update(parameter, matrices)
        self._adamw.param_groups, self._adamw.state = others, self.state  # as they are after loading, too
        self._adamw.step()
        return None

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        gradient, buffer = _local(parameter.grad), _local(state["momentum_buffer"])
        buffer.lerp_(gradient, 1 - group["momentum"])
        update = _whole(gradient.lerp(buffer, group["momentum"]).bfloat16(), parameter)  # the iteration's format
        orthogonal: Tensor = _zeropower_via_newtonschulz(update, _COEFFICIENTS, _ITERATIONS, _EPSILON)
        shard, offsets = local_shard(parameter)
        mine = tuple(slice(start, start + size) for start, size in zip(offsets, shard.shape, strict=True))
        shard.mul_(1 - group["lr"] * group["weight_decay"])
        shard.add_(orthogonal[mine], alpha=-_adjust_lr(group["lr"], _RMS, parameter.shape))


def is_hidden_matrix(name: str, parameter: nn.Parameter, blocks: str) -> bool:
    """Return whether Muon trains a parameter: a matrix in a block, not the embedding or the output projection.

    Args:
        name: name in the model, perhaps with a wrapper's prefix.
        parameter: the parameter.
        blocks: container of the blocks in the model's spec.
    """
    return parameter.dim() == 2 and f".{blocks}." in f".{name}"


def _whole(local: Tensor, parameter: nn.Parameter) -> Tensor:
    """Gather a tensor that is sharded as a parameter is."""
    if not isinstance(parameter, DTensor):
        return local
    placed = DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return placed.full_tensor()


def _local(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise ValueError("a parameter without a gradient is not updated")
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
