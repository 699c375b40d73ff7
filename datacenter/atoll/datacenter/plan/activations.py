"""Bytes that one micro-batch keeps on a rank between its forward and its backward pass.

These are the tensors that autograd saves in ``models.llama`` (compare Korthikanti et al. 2022, section 4.1):

=====================  ==========================================================================================
norm                   its input, and one float32 per token; unfused also its float32 copy and product; norms of
                       queries and keys the same for each head
column-cut matrices    their common input, gathered along the sequence
attention              queries, keys, values, result (the output matrix's input too), one float32 per token and head
row-cut matrix         products of the gate: both matrices' results, the gate, and the product; compiled without the
                       gate, which its backward kernel computes again
=====================  ==========================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from atoll.datacenter.job.loss_chunks import compiles_loss, loss_chunk_tokens
from atoll.datacenter.parallel.attention_blocks import fits_gpu
from atoll.datacenter.sizing.formula import Figure, given, largest

if TYPE_CHECKING:
    from atoll.datacenter.plan.layout import Layout, Task

_FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class Activations:
    """Activations of one micro-batch, in bytes on one rank.

    Attributes:
        block: kept by one block.
        working: added while one block's backward pass runs: what it recomputes, and gradients.
        passed: gradients of hidden states, between the backward passes of blocks.
        last: kept by the last norm and the output projection.
        logits: kept by a pipeline until its step ends; otherwise freed before the loss's backward pass, if the loss is
            not compiled. With a loss in chunks, hidden states instead.
        saved: logits that a compiled loss saves for its backward pass.
        loss: while the loss's backward pass begins, or while a chunk's gradient is computed; without logits.
        outgrown: logits that are freed before their float32 copies are made. The allocator's segment is too small for
            a copy, so it stays empty.
        projection: gradients that the output projection's backward pass starts from.
        boundary: one hidden state, as sent between stages.
    """

    block: Figure
    working: Figure
    passed: Figure
    last: Figure
    logits: Figure
    saved: Figure
    loss: Figure
    outgrown: Figure
    projection: Figure
    boundary: Figure


def activations_of(task: Task, layout: Layout) -> Activations:
    """Return the activations of a layout; layouts with the same relevant degrees share the figures."""
    dims = layout.dims
    return _activations(task, layout.micro_batch, dims.cp, dims.tp, dims.ep, layout.checkpointing)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Widths of hidden states on one rank, in elements.

    Attributes:
        count: tokens of one micro-batch.
        tp: tensor-parallel ranks.
        between: ranks over which the sequence is divided between matrices.
    """

    count: Figure
    tp: Figure
    between: Figure


def tokens_of(task: Task, micro_batch: int, cp: int, tp: int) -> Tokens:
    """Return the tokens of a micro-batch that a rank sees."""
    cut = given("tp", tp)
    count = given("micro_batch", micro_batch, "sequences") * task.sequence
    if cp > 1:
        count = count / given("cp", cp)
    sequence = tp > 1 and task.job.tensor_parallel.sequence
    return Tokens(count.called("tokens", "tokens"), cut, cut if sequence else given("uncut", 1))


@lru_cache(maxsize=4096)
def _activations(task: Task, micro_batch: int, cp: int, tp: int, ep: int, checkpointing: str) -> Activations:
    tokens = tokens_of(task, micro_batch, cp, tp)
    sizes, width = task.shape.sizes, task.width
    hidden = (tokens.count * sizes.dim * width).called("hidden states", "bytes")
    boundary = (hidden / tokens.between).called("hidden states between matrices", "bytes")
    whole = _whole_block(task, tokens, hidden, ep, cp)
    kept, again = _kept(task, tokens, hidden, boundary, whole, checkpointing)
    working = (again + _gradients(task, tokens, hidden, cp)).called("working memory of a block", "bytes")
    last = (boundary + hidden + _norm_extra(task, tokens)).called("last norm and output", "bytes")
    chunk = loss_chunk_tokens(task.job, micro_batch=micro_batch, cp=cp, tp=tp, head=task.has_head)
    logits, loss = _loss(task, tokens, chunk)
    projection = logits if chunk is None else hidden
    compiles = compiles_loss(task.job, tp=tp)
    saved = logits if chunk is None and compiles else Figure(0.0)
    outgrown = logits if chunk is None and not compiles and width.value < _FLOAT32 else Figure(0.0)
    return Activations(kept, working, 2 * hidden, last, logits, saved, loss, outgrown, projection, boundary)


def _gradients(task: Task, tokens: Tokens, hidden: Figure, cp: int) -> Figure:
    """Gradients of activations at the fullest moment of a block's backward pass.

    That is the product of the gate: its gradient and those of both factors exist, and its result is freed. With plain
    products in a ring it can be attention, after the feed-forward part is freed.
    """
    fed, rows = _fed(task, tokens), hidden
    if task.job.model.moe is not None:
        rows = rows + hidden * task.shape.sizes.top_k
    gate = 2 * fed + rows
    scores = _ring_scores(task, tokens, cp)
    return largest(gate, scores + 2 * hidden - 4 * fed) if scores.value else gate


def _whole_block(task: Task, tokens: Tokens, hidden: Figure, ep: int, cp: int) -> Figure:
    """All tensors that autograd saves of one block."""
    sizes = task.shape.sizes
    norms = 2 * hidden / tokens.between + 2 * _norm_extra(task, tokens)
    mixed = tokens.count * sizes.head_dim * (2 * sizes.heads + 2 * sizes.kv_heads) * task.width / tokens.tp
    if cp > 1:
        mixed = mixed + tokens.count * sizes.heads * sizes.head_dim * task.width / tokens.tp
    lengths = _FLOAT32 * tokens.count * sizes.heads / tokens.tp
    fed = (3 if _gate_again(task) else 4) * _fed(task, tokens)
    entered = hidden if task.job.model.moe is None else _routing(task, tokens, hidden, ep)
    whole = norms + hidden + mixed + lengths + fed + entered + _head_norms(task, tokens)
    if task.job.model.lora is not None:
        whole = whole - _not_kept(task, tokens, hidden)
    return whole.called("whole block", "bytes", "Korthikanti et al. 2022, 4.1")


def _gate_again(task: Task) -> bool:
    """Whether the compiler computes the gate again, from its input, instead of keeping it."""
    return task.job.memory.compile and task.job.model.moe is None


def _not_kept(task: Task, tokens: Tokens, hidden: Figure) -> Figure:
    """Inputs of frozen parameters, which get no gradient: of norms, and of matrices without an adapter."""
    lora = task.job.model.lora
    targets = set(lora.targets) if lora else set()
    spared = Figure(0.0)
    if not task.fused_norm:
        spared = spared + 2 * _FLOAT32 * tokens.count * task.shape.sizes.dim / tokens.between
    if task.job.model.moe is None:
        spared = spared + (Figure(0.0) if "w2" in targets else _fed(task, tokens))
        spared = spared + (Figure(0.0) if targets & {"w1", "w3"} else hidden)
    if not targets & {"wq", "wk", "wv"}:
        spared = spared + hidden
    return spared.called("inputs of frozen parameters", "bytes")


def _fed(task: Task, tokens: Tokens) -> Figure:
    """One hidden layer of the feed-forward part, or of all experts that a token is routed to."""
    sizes = task.shape.sizes
    passed = sizes.ffn_dim * (sizes.top_k + sizes.shared) if task.job.model.moe else sizes.ffn_dim
    return (tokens.count * passed * task.width / tokens.tp).called("feed-forward layer", "bytes")


def _routing(task: Task, tokens: Tokens, hidden: Figure, ep: int) -> Figure:
    """The router's float32 input, scores and indices; and rows before experts, after them, and back in order."""
    sizes = task.shape.sizes
    entered = _FLOAT32 * tokens.count * sizes.dim
    if task.width.value < _FLOAT32 and sizes.shared.value:
        entered = entered + hidden
    places = tokens.count * (_FLOAT32 * sizes.experts + 32 * sizes.top_k + _FLOAT32)
    rows = given("copies of a routed row", 4 if ep > 1 else 3)
    return entered + places + rows * hidden * sizes.top_k


def _norm_extra(task: Task, tokens: Tokens) -> Figure:
    """Bytes that one RMSNorm saves in addition to its input."""
    lengths = _FLOAT32 * tokens.count / tokens.between
    if task.fused_norm:
        return lengths
    elements = tokens.count * task.shape.sizes.dim / tokens.between
    copies = 1 if task.width.value == _FLOAT32 else 2  # a float32 input needs no float32 copy
    return lengths + copies * _FLOAT32 * elements - (0 if copies == 1 else 1) * elements * task.width


def _head_norms(task: Task, tokens: Tokens) -> Figure:
    """Bytes that norms of queries and keys save: as for any norm, with a vector for each head."""
    if not task.job.model.qk_norm:
        return Figure(0.0)
    sizes = task.shape.sizes
    vectors = tokens.count * (sizes.heads + sizes.kv_heads) / tokens.tp
    saved = vectors * (_FLOAT32 + sizes.head_dim * task.width)
    if not task.fused_norm:
        saved = saved + _FLOAT32 * vectors * sizes.head_dim
    return saved.called("norms of queries and keys", "bytes")


def _ring_scores(task: Task, tokens: Tokens, cp: int) -> Figure:
    """Scores of a rank's own block in float32, without fused kernels: exponentials, gradients and their difference."""
    if cp == 1 or task.job.context_parallel.method != "ring" or _fused_ring(task):
        return Figure(0.0)
    length = task.sequence / given("cp", cp)
    scores = tokens.count * length * task.shape.sizes.heads / tokens.tp
    return (3 * _FLOAT32 * scores).called("scores of ring attention", "bytes")


def _fused_ring(task: Task) -> bool:
    """Whether a GPU's fused kernels take the blocks; the CPU's, which ``verify`` counts, take all."""
    if task.job.context_parallel.kernels == "plain":
        return False
    return not task.fused_norm or (task.width.value < _FLOAT32 and fits_gpu(task.job.model.head_dim))


def _kept(
    task: Task, tokens: Tokens, hidden: Figure, boundary: Figure, whole: Figure, checkpointing: str
) -> tuple[Figure, Figure]:
    """Tensors that a block keeps, and those that its backward pass recomputes."""
    nothing = Figure(0.0)
    match checkpointing:
        case "gathered":
            kept = whole - 2 * (hidden - boundary)
            return kept.called("kept by a block", "bytes", "Korthikanti et al. 2022, 4.2.2"), hidden - boundary
        case "full":
            return (boundary * 1).called("kept by a block", "bytes", "Chen et al. 2016: its input"), whole
        case "selective":
            kept = _products(task, tokens, hidden, boundary).called(
                "kept by a block", "bytes", "Korthikanti et al. 2022, 5: results of matrix products and attention"
            )
            return kept, largest(whole - kept, nothing)
        case "budget":
            share = given("memory.budget", task.job.memory.budget)
            kept = boundary + share * (whole - boundary)
            return kept.called("kept by a block", "bytes"), (1 - share) * (whole - boundary)
    return whole.called("kept by a block", "bytes"), nothing


def _products(task: Task, tokens: Tokens, hidden: Figure, boundary: Figure) -> Figure:
    """The block's input; results of its matrix products and attention; what reduce-scatters leave of them.

    No backward pass needs the last product, ``w2``'s: the compiler leaves it out, PyTorch's eager policy keeps it.
    """
    sizes = task.shape.sizes
    mixed = tokens.count * sizes.head_dim * (2 * sizes.heads + 2 * sizes.kv_heads) * task.width / tokens.tp
    lengths = _FLOAT32 * tokens.count * sizes.heads / tokens.tp
    scattered = 2 * boundary if tokens.between.value > 1 else Figure(0.0)
    results = hidden if task.job.memory.compile else 2 * hidden
    if task.job.model.moe is not None:  # attention's, one row for each selected expert, scores
        shared = hidden if sizes.shared.value else Figure(0.0)
        results = hidden + hidden * sizes.top_k + shared + _FLOAT32 * tokens.count * sizes.experts
    return boundary + mixed + lengths + 2 * _fed(task, tokens) + results + scattered


def _loss(task: Task, tokens: Tokens, chunk: int | None) -> tuple[Figure, Figure]:
    """Logits, and what the loss makes of them.

    Without the compiler these are three float32 copies: log-probabilities and two gradients; loss parallelism makes one
    more. A compiled loss makes only the gradient, in the dtype of the logits.
    """
    if chunk is not None:
        return _chunked_loss(task, tokens, chunk)
    elements, copies = tokens.count * task.shape.sizes.vocab, 3
    if tokens.tp.value > 1 and task.job.tensor_parallel.loss:
        elements, copies = elements / tokens.tp, 4
    elements = elements.called("logits of a micro-batch", "elements")
    logits = (elements * task.width).called("logits", "bytes")
    if compiles_loss(task.job, tp=int(tokens.tp.value)):
        return logits, (elements * task.width).called("gradient of the logits", "bytes")
    loss = given("float32 copies", copies) * _FLOAT32 * elements
    return logits, loss.called("loss", "bytes")


def _chunked_loss(task: Task, tokens: Tokens, chunk: int) -> tuple[Figure, Figure]:
    """Hidden states; a chunk's logits in float32 and in the compute dtype; and the gradients computed so far.

    The backward pass multiplies both gradients by that of the loss, not in place.
    """
    hidden = (tokens.count * task.shape.sizes.dim * task.width).called("hidden states of the loss", "bytes")
    logits = given("memory.loss_chunk_tokens", chunk, "tokens") * task.shape.sizes.vocab / tokens.tp
    trained = Figure(0.0) if task.shape.frozen else task.shape.sizes.dim * task.shape.sizes.vocab / tokens.tp
    matrix = trained.called("output matrix, if it is trained", "elements")
    wide = _FLOAT32 + (0 if task.width.value == _FLOAT32 else task.width)
    summing, multiplying = wide * (logits + matrix), 2 * task.width * matrix + hidden
    loss = hidden + largest(summing, multiplying)
    return hidden, loss.called("loss", "bytes")
