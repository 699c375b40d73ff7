"""A Llama-style transformer (Touvron et al. 2023): RMSNorm, rotary positions, SwiGLU, grouped queries.

Blocks are in a ``ModuleDict`` by number, so that a pipeline stage keeps a subset under the same names; a stage may lack
embedding, norm and output. The feed-forward part is dense or a mixture of experts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import pi
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from atoll.datacenter.models.documents import attend, document_mask
from atoll.datacenter.models.moe import MoeFeedForward

if TYPE_CHECKING:
    from atoll.datacenter.job.model import ModelSection, RopeScalingSection
    from atoll.datacenter.models.documents import DocumentMask


def rotations(positions: Tensor, head_dim: int, theta: float, scaling: RopeScalingSection | None = None) -> Tensor:
    """Return cosines and sines of the rotary angles (Su et al. 2021, section 3.2.2), as bits.

    FSDP's mixed precision casts every floating-point tensor that a block is given: bfloat16 would round these to 8
    bits, and silos of different layouts would train different functions.

    Args:
        positions: int64 ``[sequence]``, or ``[batch, sequence]`` where rows differ.
        head_dim: width of a head, even.
        theta: base of the frequencies.
        scaling: how the frequencies are scaled.

    Returns:
        The bits of float32 ``[2, *positions, head_dim / 2]``, cosines and sines, as int32.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    frequencies = theta**-exponents
    if scaling is not None:
        frequencies = _scaled(frequencies, scaling)
    angles = positions.to(torch.float32)[..., None] * frequencies
    return torch.stack((angles.cos(), angles.sin())).view(torch.int32)


def _scaled(frequencies: Tensor, scaling: RopeScalingSection) -> Tensor:
    """Divide low frequencies, keep high ones, mix those in between (Grattafiori et al. 2024, section 3.4.2).

    Args:
        frequencies: float32 ``[head_dim / 2]``, in radians per position.
        scaling: bounds, in rotations within the original sequence.
    """
    rotations = scaling.original_sequence * frequencies / (2 * pi)
    kept = ((rotations - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency)).clamp(0.0, 1.0)
    return (1.0 - kept) * frequencies / scaling.factor + kept * frequencies


def rotate(heads: Tensor, angles: Tensor) -> Tensor:
    """Rotate each head's pairs (first half with second half, as in Hugging Face's Llama).

    Args:
        heads: ``[batch, sequence, heads, head_dim]``.
        angles: see ``rotations``.

    Returns:
        Same shape and dtype as ``heads``; computed in float32.
    """
    cos, sin = angles.view(torch.float32)[..., None, :]
    first, second = heads.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)


class OffsetRMSNorm(nn.RMSNorm):
    """RMSNorm that multiplies by 1 + weight, as Gemma's (Gemma Team 2024)."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., dim]`` to the same shape."""
        return functional.rms_norm(x, self.normalized_shape, 1 + self.weight, self.eps)


def norm_of(model: ModelSection, width: int) -> nn.RMSNorm:
    """Return a norm over vectors of this width."""
    return (OffsetRMSNorm if model.norm_offset else nn.RMSNorm)(width, eps=model.norm_epsilon)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}


class CausalAttention(nn.Module):
    """Causal softmax attention. A separate module, so that context parallelism can replace it."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: DocumentMask | None = None) -> Tensor:
        """Attend; all tensors are ``[batch, sequence, heads, head_dim]``, keys and values may have fewer heads."""
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        if mask is not None:
            return attend(query, key, value, mask).transpose(1, 2)
        grouped = query.shape[1] != key.shape[1]
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped).transpose(
            1, 2
        )


class Attention(nn.Module):
    """Attention with rotary positions and grouped queries (Ainslie et al. 2023)."""

    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        self.head_dim = model.head_dim
        bias = model.attention_bias
        self.wq = nn.Linear(model.dim, model.heads * self.head_dim, bias=bias)
        self.wk = nn.Linear(model.dim, model.kv_heads * self.head_dim, bias=bias)
        self.wv = nn.Linear(model.dim, model.kv_heads * self.head_dim, bias=bias)
        self.wo = nn.Linear(model.heads * self.head_dim, model.dim, bias=False)
        self.q_norm = norm_of(model, model.head_dim) if model.qk_norm else None
        self.k_norm = norm_of(model, model.head_dim) if model.qk_norm else None
        self.core: nn.Module = CausalAttention()

    def forward(self, hidden: Tensor, angles: Tensor, *, mask: DocumentMask | None = None) -> Tensor:
        """Map ``[batch, sequence, dim]`` to the same shape. Tensor parallelism leaves each rank some of the heads."""
        batch, sequence, _ = hidden.shape
        query, key, value = (
            linear(hidden).view(batch, sequence, -1, self.head_dim) for linear in (self.wq, self.wk, self.wv)
        )
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        within = () if mask is None else (mask,)  # the replacement by context parallelism takes no mask
        mixed: Tensor = self.core(rotate(query, angles), rotate(key, angles), value, *within)
        projected: Tensor = self.wo(mixed.reshape(batch, sequence, -1))
        return projected


class FeedForward(nn.Module):
    """A gated layer: SwiGLU or GEGLU (Shazeer 2020)."""

    def __init__(self, dim: int, hidden: int, activation: Callable[[Tensor], Tensor] = functional.silu) -> None:
        super().__init__()
        self.activation = activation
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map ``[..., dim]`` to the same shape."""
        mixed: Tensor = self.w2(self.activation(self.w1(hidden)) * self.w3(hidden))
        return mixed


class Block(nn.Module):
    """Attention and feed-forward part, each with a norm before it and a residual connection."""

    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        self.attention_norm = norm_of(model, model.dim)
        self.attention = Attention(model)
        self.ffn_norm = norm_of(model, model.dim)
        self.feed_forward = _feed_forward(model)

    def forward(self, hidden: Tensor, angles: Tensor, *, mask: DocumentMask | None = None) -> Tensor:
        """Map ``[batch, sequence, dim]`` to the same shape."""
        hidden = hidden + self.attention(self.attention_norm(hidden), angles, mask=mask)
        fed: Tensor = hidden + self.feed_forward(self.ffn_norm(hidden))
        return fed


def _feed_forward(model: ModelSection) -> nn.Module:
    if model.moe is None:
        return FeedForward(model.dim, model.ffn_dim, _ACTIVATIONS[model.activation])
    width = model.moe.shared_experts * model.moe.expert_dim
    return MoeFeedForward(model.dim, model.moe, FeedForward(model.dim, width) if width else None)


class Llama(nn.Module):
    """Maps token ids to logits. A pipeline stage is such a model with parts removed.

    Attributes:
        tok_embeddings: on the first stage; otherwise None, and ``forward`` takes hidden states.
        blocks: ``Block`` modules by number in the whole model.
        norm: on the last stage, else None.
        output: on the last stage; otherwise None, and ``forward`` returns hidden states.
        positions: positions of this rank's part of each sequence; context parallelism replaces it.
        sequence_parts: number of parts into which tensor parallelism divides the sequence of incoming hidden states.
    """

    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        self.model = model
        self.tok_embeddings: nn.Embedding | None = nn.Embedding(model.vocab, model.dim)
        self.blocks = nn.ModuleDict({str(number): Block(model) for number in range(model.layers)})
        self.norm: nn.RMSNorm | None = norm_of(model, model.dim)
        self.output: nn.Linear | None = nn.Linear(model.dim, model.vocab, bias=False)
        self.positions: Callable[[int, torch.device], Tensor] = _from_zero
        self.sequence_parts = 1
        if model.tied_embeddings:
            self.output.weight = self.tok_embeddings.weight

    def forward(self, tokens: Tensor, documents: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Run the parts that this module has.

        Args:
            tokens: int64 ids ``[batch, sequence]``, or hidden states ``[batch, sequence, dim]`` where the embedding is
                missing.
            documents: int64 ``[batch, sequence]``: attend within documents, see ``models.documents``. None: to all
                earlier tokens of the row.
            positions: int64 ``[batch, sequence]``: positions in the documents. None: in the row.

        Returns:
            logits ``[batch, sequence, vocab]``, or hidden states where the output is missing.
        """
        sequence = tokens.shape[1] * self.sequence_parts
        hidden: Tensor = self.tok_embeddings(tokens) if self.tok_embeddings is not None else tokens
        if self.tok_embeddings is not None and self.model.scaled_embeddings:
            hidden = hidden * self.model.dim**0.5
        if positions is None:
            positions = self.positions(sequence, tokens.device)
        mask = None if documents is None else document_mask(documents)
        angles = rotations(positions, self.model.head_dim, self.model.rope_theta, self.model.rope_scaling)
        for block in self.blocks.values():
            hidden = block(hidden, angles, mask=mask)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return self.output(hidden) if self.output is not None else hidden


def _from_zero(sequence: int, device: torch.device) -> Tensor:
    return torch.arange(sequence, device=device)
