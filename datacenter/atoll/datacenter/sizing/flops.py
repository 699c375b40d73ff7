"""FLOPs of one token, forward and backward: the basis of MFU.

A matrix product of a token with ``w`` weights takes ``2 w`` FLOPs forward and twice that backward (once for the
gradient of its input, once for the gradient of the weights). Attention takes ``4 * heads * head_dim * sequence``
forward (scores, then the weighted sum of values) and twice that backward: Chowdhery et al. 2022, appendix B. This
counts scores above the diagonal too, as most published figures do, although causal kernels skip them: with long
sequences it overstates MFU. Norms, rotations, softmax and the loss are not counted, nor are recomputed activations.
Only experts that a token is routed to count. Frozen weights (LoRA) have no gradients of their own, so 4 instead of 6;
the count ignores that the inputs of their first block need no gradients either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.datacenter.sizing.formula import Figure
    from atoll.datacenter.sizing.shape import Shape

PER_WEIGHT, PER_FROZEN_WEIGHT = 6, 4
"""FLOPs of one token for each weight that it meets, forward and backward."""


def flops_per_token(shape: Shape, sequence: Figure | int) -> Figure:
    """Return the FLOPs of one token in sequences of this many tokens."""
    products = PER_WEIGHT * shape.active
    if shape.frozen:
        products = PER_FROZEN_WEIGHT * shape.active + PER_WEIGHT * shape.trained_adapters
    whole = products + attention_flops_per_token(shape, sequence)
    return whole.called("FLOPs per token", "FLOP", "Chowdhery et al. 2022, appendix B")


def attention_flops_per_token(shape: Shape, sequence: Figure | int) -> Figure:
    """Return the FLOPs of one token that do not grow with the weights: scores, and weighted sums of values."""
    sizes = shape.sizes
    return 12 * sizes.layers * sizes.heads * sizes.head_dim * sequence
