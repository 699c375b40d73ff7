"""FLOPs that PyTorch counts, to compare formulas with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def counted_flops(work: Callable[[], object]) -> float:
    """Count PyTorch's FLOPs while ``work`` runs, also of what it does backward.

    Attention is computed as plain products, so that it counts as ``sizing.flops`` counts it. Tensors on the meta device
    suffice.
    """
    more = {torch.ops.aten._grouped_mm: _grouped_flops}  # its name; the counter does not know it
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=more) as counter:
        work()
    return float(counter.get_total_flops())


def _grouped_flops(left: Sequence[int], right: Sequence[int], *_: object, **__: object) -> int:
    """FLOPs of grouped products (experts) from the factors' shapes; the dim divided among groups counts once."""
    dealt_columns = len(left) == 3 and len(right) == 2
    return 2 * prod(left[1:] if dealt_columns else left) * right[-1]
