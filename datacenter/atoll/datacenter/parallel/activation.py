"""Activation checkpointing: recompute activations in the backward pass instead of keeping them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from atoll.datacenter.parallel.ring import RING

if TYPE_CHECKING:
    from atoll.datacenter.job.parallel import MemorySection

_ops = torch.ops.aten
_KEPT = {
    _ops.mm.default,
    _ops.addmm.default,
    _ops.bmm.default,
    _ops._grouped_mm.default,  # noqa: SLF001  # ATen's names of its operators
    _ops._scaled_dot_product_flash_attention.default,  # noqa: SLF001
    _ops._scaled_dot_product_efficient_attention.default,  # noqa: SLF001
    _ops._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001
    _ops._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001
    torch.ops._c10d_functional.reduce_scatter_tensor.default,  # noqa: SLF001
    torch.ops._c10d_functional.all_to_all_single.default,  # noqa: SLF001
    RING,
}
"""Results that ``selective`` keeps: costly to compute, small compared to the rest, or communicated."""


def checkpoint_blocks(blocks: Iterable[nn.Module], memory: MemorySection) -> None:
    """Make each block drop its activations as the job asks, in place; parameter names stay the same.

    ``full`` keeps only a block's input (Chen et al. 2016): a third more work. ``selective`` also keeps the results of
    matrix products and attention (Korthikanti et al. 2022, section 5): a few per cent more.
    """
    if memory.checkpointing == "budget":
        functorch_config.activation_memory_budget = memory.budget
    if memory.checkpointing not in {"selective", "full"}:
        return
    settings: dict[str, Any] = {"use_reentrant": False}
    if memory.checkpointing == "selective":
        settings["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    for block in blocks:
        block.forward = _forgetful(block.forward, settings)  # hooks stay outside


def _forgetful(forward: Callable[..., Any], settings: dict[str, Any]) -> Callable[..., Any]:
    """Wrap in a function of this module: the compiler would skip PyTorch's own."""

    def worked_out_again(*inputs: Any, **named: Any) -> Any:
        return checkpoint(forward, *inputs, **settings, **named)

    return worked_out_again


def _policy(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
