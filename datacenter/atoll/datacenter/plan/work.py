"""Work of one micro-batch on a rank: operations of matrix products and attention, bytes of everything else.

Matrix products take two operations for each parameter and token, and twice that in the backward pass (Kaplan et al.
2020, section 2.1). Attention takes ``4 * sequence * heads * head_dim`` for each token, half of it under a causal mask,
and two and a half times that in the backward pass, which recomputes the scores (Dao 2023, section 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from atoll.datacenter.plan.activations import Tokens, tokens_of
from atoll.datacenter.sizing.formula import Figure, given

if TYPE_CHECKING:
    from atoll.datacenter.plan.layout import Layout, Task

_FLOAT32 = 4
_ATTENTION_BACKWARD = 2.5
_EAGER_PASSES, _COMPILED_PASSES = (10, 4, 14), (6, 3, 2)
"""Times that elements are read or written in a forward pass: hidden states (two norms, two sums), the gate's layer,
queries and keys (rotated in float32); each operator separately, or fused by the compiler."""


@dataclass(frozen=True, slots=True)
class BlockWork:
    """One block, one micro-batch, one rank.

    Attributes:
        products: operations of matrix products, forward; the backward pass does twice as many, for inputs and for
            weights.
        attention: operations of attention, forward.
        moved: bytes that everything else reads and writes, forward; the backward pass moves twice as many.
    """

    products: Figure
    attention: Figure
    moved: Figure

    @property
    def attention_backward(self) -> Figure:
        """Operations of attention's backward pass."""
        return _ATTENTION_BACKWARD * self.attention


@dataclass(frozen=True, slots=True)
class EndWork:
    """The output projection and the loss, one micro-batch, one rank."""

    products: Figure
    moved: Figure


def block_work(task: Task, layout: Layout) -> BlockWork:
    """Return the work of one block with this layout."""
    dims = layout.dims
    return _block_work(task, layout.micro_batch, dims.cp, dims.tp)


def end_work(task: Task, layout: Layout) -> EndWork:
    """Return the work of the output projection and the loss with this layout."""
    dims = layout.dims
    return _end_work(task, layout.micro_batch, dims.cp, dims.tp)


@lru_cache(maxsize=4096)
def _block_work(task: Task, micro_batch: int, cp: int, tp: int) -> BlockWork:
    tokens, shape, sizes = tokens_of(task, micro_batch, cp, tp), task.shape, task.shape.sizes
    products = 2 * shape.met * tokens.count / tokens.tp
    attention = 2 * tokens.count * task.sequence * sizes.heads * sizes.head_dim / tokens.tp
    return BlockWork(
        products.called("matrix products of a block", "FLOP"),
        attention.called("attention of a block", "FLOP"),
        _moved(task, tokens),
    )


@lru_cache(maxsize=4096)
def _end_work(task: Task, micro_batch: int, cp: int, tp: int) -> EndWork:
    tokens, sizes = tokens_of(task, micro_batch, cp, tp), task.shape.sizes
    logits = tokens.count * sizes.vocab / tokens.tp
    moved = logits * (2 * task.width + 6 * _FLOAT32)
    return EndWork(
        (2 * logits * sizes.dim).called("output projection", "FLOP"), moved.called("bytes moved by the loss", "bytes")
    )


def _moved(task: Task, tokens: Tokens) -> Figure:
    sizes = task.shape.sizes
    hidden, gate, turned = _COMPILED_PASSES if task.job.memory.compile else _EAGER_PASSES
    experts = sizes.top_k + sizes.shared if sizes.experts.value else given("feed-forward parts", 1)
    moved = tokens.count * (
        hidden * sizes.dim / tokens.between
        + gate * sizes.ffn_dim * experts / tokens.tp
        + turned * sizes.head_dim * (sizes.heads + sizes.kv_heads) / tokens.tp
    )
    return (moved * task.width).called("bytes moved by a block", "bytes")
