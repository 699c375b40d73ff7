"""Gaussian noise on gradients that are cut over ranks: each rank draws what belongs to its shard, and no more.

What is drawn depends on secret, step, name and place in the whole parameter. So replicas of a shard draw the same,
shards draw independently, and together they hold exactly what one process would have drawn.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from atoll.datacenter.parallel.held import held
from atoll.datacenter.parallel.initial import fill_blocks

if TYPE_CHECKING:
    from torch import nn

    from atoll.datacenter.privacy.secret import Secret


@torch.no_grad()
def add_noise(parameters: Iterable[tuple[str, nn.Parameter]], std: float, secret: Secret, purpose: str) -> None:
    """Add noise to gradients, in place.

    Memory: this rank's shard of one parameter, and one block of it (see ``parallel.initial``).

    Args:
        parameters: by name; their gradients are sums over all ranks already, plain or ``DTensor``.
        std: standard deviation of each element; 0: nothing happens.
        secret: the world's.
        purpose: another one at each step.
    """
    if std == 0:
        return
    for name, parameter in parameters:
        if parameter.grad is None:
            continue
        local, offsets = held(parameter.grad)
        if local.numel():
            drawn = torch.empty_like(local, dtype=torch.float32)
            fill_blocks(drawn, offsets, tuple(parameter.shape), partial(_block, secret, f"{purpose}/{name}", std))
            local.add_(drawn)


def _block(secret: Secret, purpose: str, std: float, block: int, shape: tuple[int, ...]) -> Tensor:
    drawn = secret.generator(f"{purpose}/{block}").standard_normal(shape, np.float32)
    return torch.from_numpy(drawn).mul_(std)
