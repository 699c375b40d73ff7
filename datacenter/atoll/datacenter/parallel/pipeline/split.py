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
        return len(spec.blocks_of(spec.build()))


def build_stage(spec: ModelSpec, deal: Deal, stage: int) -> nn.Module:
    """Build the module of one stage on the meta device.

    Modules before the blocks are None in all stages but the first, modules after them in all but the last; the blocks
    keep their numbers.
    """
    with torch.device("meta"):
        module = spec.build()
    container, kept = module.get_submodule(spec.blocks), set(deal.blocks[stage])
    for number in spec.blocks_of(module):
        if int(number) not in kept:
            delattr(container, number)  # a ModuleList keeps the numbers of the others; ``del`` would change them
    if stage > 0:
        _take_out(module, spec.first)
    if stage < deal.stages - 1:
        _take_out(module, spec.last)
    return module


def _take_out(module: nn.Module, names: tuple[str, ...]) -> None:
    for name in names:
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, None)
