"""Gaussian noise on sharded gradients: each rank draws only what belongs to its shard.

The noise depends on secret, step, name and position in the whole parameter. Replicas of a shard therefore draw the same
noise, shards draw independent noise, and all shards together hold exactly what one process would have drawn.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from atoll.datacenter.mesh.shards import local_shard
from atoll.datacenter.parallel.initial import fill_blocks

if TYPE_CHECKING:
    from torch import nn

    from atoll.datacenter.privacy.secret import Secret


@torch.no_grad()
def add_noise(parameters: Iterable[tuple[str, nn.Parameter]], std: float, secret: Secret, purpose: str) -> None:
    """Add noise to gradients, in place.

    Memory: this rank's shard of one parameter, and one block of it (see ``parallel.initial``).

    Args:
        parameters: parameters by name; their gradients are already summed over all ranks, plain or ``DTensor``.
        std: standard deviation of each element; 0 adds nothing.
        secret: secret of the world.
        purpose: different at each step.
    """
    if std == 0:
        return
    for name, parameter in parameters:
        if parameter.grad is None:
            continue
        local, offsets = local_shard(parameter.grad)
        if local.numel():
            drawn = torch.empty_like(local, dtype=torch.float32)
            fill_blocks(drawn, offsets, tuple(parameter.shape), partial(_block, secret, f"{purpose}/{name}", std))
            local.add_(drawn)


def _block(secret: Secret, purpose: str, std: float, block: int, shape: tuple[int, ...]) -> Tensor:
    drawn = secret.generator(f"{purpose}/{block}").standard_normal(shape, np.float32)
    return torch.from_numpy(drawn).mul_(std)
