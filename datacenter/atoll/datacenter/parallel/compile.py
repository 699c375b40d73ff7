"""Compile one block at a time: blocks of the same shape share their code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config

from atoll.datacenter.models.moe import routed_of

if TYPE_CHECKING:
    from atoll.datacenter.models.spec import ModelSpec


def compile_blocks(module: nn.Module, spec: ModelSpec, *, backward_twice: bool) -> None:
    """Compile each block of this module, in place; in a block with experts, only the parts around the experts.

    The output of the first modules may still be in flight when it is the result of a collective (tensor parallelism).
    The compiler would wait for it in a way that autograd does not see, and the gradient would silently be exactly 0. A
    copy waits for the collective first.

    Args:
        module: a model or a stage of it.
        spec: names the blocks and the first modules.
        backward_twice: whether the schedule asks for gradients of inputs and of weights one after the other; then the
            backward pass must not overwrite its inputs.
    """
    if backward_twice:
        functorch_config.donated_buffer = False
    for block in spec.blocks_of(module).values():
        experts = [routed for _, routed in routed_of(block)]
        for routed in experts:  # how many rows an expert gets is known only at run time
            routed.forward = torch.compiler.disable(routed.forward)  # type: ignore[method-assign,no-untyped-call]  # only of this module; torch leaves it untyped
        block.compile(fullgraph=not experts)
    for name in spec.first:
        if getattr(module, name.partition(".")[0], None) is not None:
            module.get_submodule(name).register_forward_hook(_arrived)


def _arrived(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    return output.clone()
