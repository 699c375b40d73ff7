"""Attention of some queries to some keys, with the log-sum-exp that merges such blocks (Dao et al. 2022, section 3.1).

The backward pass of a block takes the result and the log-sum-exp of *all* blocks: softmax and its gradient are then
those of the whole row, so each block computes its summand of the gradients (algorithm 4 of the same paper).

========  ==================================================================  ========================
kernels   where                                                               memory beside the result
========  ==================================================================  ========================
fused     PyTorch's FlashAttention: on the CPU for every format, on a GPU     a float32 per query, head
          (Ampere and later) for 16-bit formats and heads whose width is a
          multiple of 8, up to 256
plain     elsewhere, and on request: products in float32                      the block's scores
========  ==================================================================  ========================
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

_ops = torch.ops.aten
HEAD_MULTIPLE, LARGEST_HEAD = 8, 256
"""Head widths that the fused kernel of a GPU supports."""
_CAPABILITY = (8, 0)
"""The oldest NVIDIA GPUs that it runs on."""
_HALF = (torch.bfloat16, torch.float16)


class Kernels(Protocol):
    """Attention of one block, forward and backward.

    Queries are ``[batch, heads, queries, head_dim]``; keys and values ``[batch, kv_heads, keys, head_dim]``, with
    ``kv_heads`` a divisor of ``heads``; ``logs`` float32 ``[batch, heads, queries]``. ``causal`` requires the same
    number of keys and queries, at the same positions. The elements of a head must be contiguous (see ``dense``);
    otherwise fused kernels for the CPU read other memory, without an error.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
        """Return the result of this block, and its log-sum-exp."""
        ...

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, logs: Tensor, *, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return this block's summands of the gradients of query, key and value.

        Args:
            gradient: of the result of all blocks.
            query: the block's queries.
            key: its keys.
            value: its values.
            mixed: result of all blocks.
            logs: log-sum-exp of all blocks.
            causal: as in the forward pass.
        """
        ...


def kernels_for(query: Tensor, *, fused: bool) -> Kernels:
    """Return the kernels for queries of this device, dtype and width; the fused ones only if requested."""
    if not fused:
        return Plain()
    if query.device.type == "cpu":
        return FlashOnCpu()
    fits = query.device.type == "cuda" and query.dtype in _HALF and fits_gpu(query.shape[-1])
    return FlashOnGpu() if fits and torch.cuda.get_device_capability(query.device) >= _CAPABILITY else Plain()


def dense(tensor: Tensor) -> Tensor:
    """Return the same tensor, copied only if its last dim is not contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def fits_gpu(head_dim: int) -> bool:
    """Return whether a GPU's fused kernel takes heads of this width."""
    return head_dim % HEAD_MULTIPLE == 0 and head_dim <= LARGEST_HEAD


class FlashOnCpu:
    """PyTorch's kernels for the CPU; see ``Kernels``."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
        """See ``Kernels``."""
        mixed, logs = _ops._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal)  # noqa: SLF001  # ATen's name: no public one returns the log-sum-exp
        return mixed, logs.float()

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, logs: Tensor, *, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``Kernels``."""
        found: tuple[Tensor, Tensor, Tensor] = _ops._scaled_dot_product_flash_attention_for_cpu_backward(  # noqa: SLF001  # as above
            gradient, query, key, value, mixed, logs.to(torch.promote_types(query.dtype, logs.dtype)), 0.0, causal
        )
        return found


class FlashOnGpu:
    """PyTorch's FlashAttention on CUDA, version 2 or what ``activate_flash_attention_impl`` puts in its place."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
        """See ``Kernels``."""
        mixed, logs, *_ = _ops._scaled_dot_product_flash_attention(query, key, value, 0.0, causal)  # noqa: SLF001  # as above
        return mixed, logs

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, logs: Tensor, *, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``Kernels``. Without dropout the state of the random numbers is not read: two empty tensors."""
        unused = torch.empty(2, dtype=torch.int64, device=query.device)
        found: tuple[Tensor, Tensor, Tensor] = _ops._scaled_dot_product_flash_attention_backward(  # noqa: SLF001  # as above
            gradient,
            query,
            key,
            value,
            mixed,
            logs.contiguous(),
            None,
            None,
            query.shape[2],
            key.shape[2],
            0.0,
            causal,
            unused,
            unused,
        )
        return found


class Plain:
    """Products in float32; hold ``batch * heads * queries * keys`` scores, three times that in the backward pass."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
        """See ``Kernels``."""
        scores = _scores(query, key, causal=causal)
        logs = scores.logsumexp(-1)
        mixed = (scores - logs[..., None]).exp() @ _grouped(value)
        return mixed.flatten(1, 2).to(query.dtype), logs.flatten(1, 2)

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, logs: Tensor, *, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``Kernels``."""
        groups = key.shape[1]
        asked, wanted, found, sums = (_by_group(one, groups) for one in (query, gradient, mixed, logs[..., None]))
        shares = (_scores(query, key, causal=causal) - sums).exp()
        inner = (wanted * found).sum(-1, keepdim=True)
        of_scores = shares * (wanted @ _grouped(value).transpose(-1, -2) - inner) * query.shape[-1] ** -0.5
        of_key = (of_scores.transpose(-1, -2) @ asked).sum(2)
        of_value = (shares.transpose(-1, -2) @ wanted).sum(2)
        return (of_scores @ _grouped(key)).flatten(1, 2), of_key, of_value


def _by_group(heads: Tensor, groups: int) -> Tensor:
    """Return ``[batch, kv_heads, heads / kv_heads, …]`` in float32."""
    batch, total, *rest = heads.shape
    return heads.float().reshape(batch, groups, total // groups, *rest)


def _grouped(key: Tensor) -> Tensor:
    """Return ``[batch, kv_heads, 1, keys, head_dim]`` in float32."""
    return key.float().unsqueeze(2)


def _scores(query: Tensor, key: Tensor, *, causal: bool) -> Tensor:
    """Return float32 ``[batch, kv_heads, heads / kv_heads, queries, keys]``."""
    scores: Tensor = _by_group(query, key.shape[1]) @ _grouped(key).transpose(-1, -2) * query.shape[-1] ** -0.5
    if not causal:
        return scores
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(hidden, -torch.inf)
