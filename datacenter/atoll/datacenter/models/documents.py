"""Attention within documents, for rows into which several were packed.

A token attends to the earlier tokens of its own document, so a document's logits do not depend on its neighbours in the
row. On a GPU this is FlexAttention (Dong et al. 2024), which skips blocks of the scores that no document reaches;
elsewhere it is plain attention with a mask of ``[batch, 1, sequence, sequence]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from atoll.datacenter.models.compiled import compiled

DocumentMask: TypeAlias = Tensor | BlockMask
"""Which tokens attend to which: bool ``[batch, 1, sequence, sequence]``, or blocks of it for the fused kernel."""


def document_mask(documents: Tensor) -> DocumentMask:
    """Return the mask of a micro-batch.

    Args:
        documents: int64 ``[batch, sequence]``: document of each token; padding may be one document.
    """
    if documents.device.type == "cuda":
        return block_mask(documents, make=compiled(create_block_mask))
    same = documents[:, None, :, None] == documents[:, None, None, :]
    return same.tril()


def block_mask(documents: Tensor, make: Callable[..., BlockMask] = create_block_mask) -> BlockMask:
    """Return the mask of a micro-batch for FlexAttention; arguments as of ``document_mask``."""

    def allowed(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (documents[batch, query] == documents[batch, key])

    rows, sequence = documents.shape
    return make(allowed, rows, None, sequence, sequence, device=documents.device)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: DocumentMask) -> Tensor:
    """Attend within documents.

    Args:
        query: ``[batch, heads, sequence, head_dim]``.
        key: the same shape, or with fewer heads.
        value: the shape of ``key``.
        mask: see ``document_mask``.
    """
    grouped = query.shape[1] != key.shape[1]
    if not isinstance(mask, BlockMask):
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=grouped)
    # a compiled block contains the kernel; elsewhere it is compiled alone, because in eager mode it keeps all scores
    compiles_alone = query.device.type == "cuda" and not torch.compiler.is_compiling()
    kernel: Any = compiled(flex_attention) if compiles_alone else flex_attention
    mixed: Tensor = kernel(query, key, value, block_mask=mask, enable_gqa=grouped)
    return mixed
