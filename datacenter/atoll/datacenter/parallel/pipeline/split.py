"""Build a stage of a model: the whole on the meta device with parts removed. Parameter names stay the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

    from atoll.datacenter.models.spec import ModelSpec
    from atoll.datacenter.parallel.pipeline.deal import Deal


def count_blocks(spec: ModelSpec) -> int:
    """Return the number of blocks of the whole model."""
    with torch.device("meta"):
        return len(getattr(spec.build(), spec.blocks))


def build_stage(spec: ModelSpec, deal: Deal, stage: int) -> nn.Module:
    """Build the module of one stage on the meta device.

    Modules before the blocks are None in all stages but the first, modules after them in all but the last; the blocks
    keep their numbers.
    """
    with torch.device("meta"):
        module = spec.build()
    blocks = getattr(module, spec.blocks)
    for number in set(range(len(blocks))) - set(deal.blocks[stage]):
        del blocks[str(number)]
    if stage > 0:
        _take_out(module, spec.first)
    if stage < deal.stages - 1:
        _take_out(module, spec.last)
    return module


def _take_out(module: nn.Module, names: tuple[str, ...]) -> None:
    for name in names:
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, None)
