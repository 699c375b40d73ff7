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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from atoll.datacenter.job.model import LoraSection, ModelSection

_PER_WEIGHT, _PER_FROZEN_WEIGHT = 6, 4
_WEIGHTS, _FROZEN = "6 * active matrix weights", "4 * frozen active matrix weights + 6 * adapter weights"
_ATTENTION = "12 * layers * heads * head_dim * sequence"


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """FLOPs of one token, and parameters of the model.

    Attributes:
        per_token: FLOPs of forward and backward pass.
        formula: formula of ``per_token``, with the numbers.
        parameters: parameters of the whole model, including all experts and adapters.
        active_parameters: parameters that one token passes through.
    """

    per_token: float
    formula: str
    parameters: int
    active_parameters: int


def llama_flops(model: ModelSection, sequence: int) -> ModelFlops:
    """Return the FLOPs of a Llama-style model, dense or with experts, with or without adapters."""
    head_dim = model.head_dim
    width = model.heads * head_dim
    attention = 2 * model.dim * (width + model.kv_heads * head_dim)
    dense, routed, active = _feed_forward(model)
    output = model.vocab * model.dim
    matrices = model.layers * (attention + dense + active) + output
    norms = (2 * model.layers + 1) * model.dim + (2 * model.layers * head_dim if model.qk_norm else 0)
    biases = model.layers * head_dim * (model.heads + 2 * model.kv_heads) if model.attention_bias else 0
    embedding = 0 if model.tied_embeddings else model.vocab * model.dim
    adapters = 0 if model.lora is None else model.layers * _adapters(model, model.lora)
    mixing = 12 * model.layers * width * sequence
    if model.lora is None:
        weights, formula = _PER_WEIGHT * matrices, f"{_WEIGHTS} {matrices:,}"
    else:
        weights = _PER_FROZEN_WEIGHT * matrices + _PER_WEIGHT * adapters
        formula = f"{_FROZEN} (4 * {matrices:,} + 6 * {adapters:,})"
    rest = norms + biases + embedding + adapters
    return ModelFlops(
        per_token=float(weights + mixing),
        formula=f"{formula} + {_ATTENTION} ({mixing:,}) = {weights + mixing:,}",
        parameters=matrices + model.layers * (routed - active) + rest,
        active_parameters=matrices + rest,
    )


def counted_flops(step: Callable[[], Tensor]) -> float:
    """Count PyTorch's FLOPs while ``step`` computes a loss and its gradients; for models of other kinds.

    Attention is computed as plain products, so that it counts as above. Tensors on the meta device suffice: the whole
    model need not fit in memory. Count before the model is cut.

    Args:
        step: the forward pass; returns the loss.
    """
    more = {torch.ops.aten._grouped_mm: _grouped_flops}  # noqa: SLF001  # its name; the counter does not know it
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=more) as counter:
        step().backward()  # type: ignore[no-untyped-call]  # torch's own
    return float(counter.get_total_flops())


def _grouped_flops(left: Sequence[int], right: Sequence[int], *_: object, **__: object) -> int:
    """FLOPs of grouped products (experts) from the factors' shapes; the dim divided among groups counts once."""
    dealt_columns = len(left) == 3 and len(right) == 2
    return 2 * prod(left[1:] if dealt_columns else left) * right[-1]


def _feed_forward(model: ModelSection) -> tuple[int, int, int]:
    """Weights of one block's feed-forward part: shared by all tokens, all routed, and routed for one token."""
    if model.moe is None:
        return 3 * model.dim * model.ffn_dim, 0, 0
    expert = 3 * model.dim * model.moe.expert_dim
    every = model.dim * model.moe.experts + model.moe.shared_experts * expert
    return every, model.moe.experts * expert, model.moe.top_k * expert


def _adapters(model: ModelSection, lora: LoraSection) -> int:
    """Weights of one block's adapters: rank * (inputs + outputs) for each (Hu et al. 2021, section 4.1)."""
    queries, keys = model.head_dim * model.heads, model.head_dim * model.kv_heads
    sizes = {"wq": model.dim + queries, "wk": model.dim + keys, "wv": model.dim + keys, "wo": queries + model.dim}
    if model.moe is None:
        sizes |= dict.fromkeys(("w1", "w2", "w3"), model.dim + model.ffn_dim)
    return lora.rank * sum(sizes.get(target, 0) for target in lora.targets)
