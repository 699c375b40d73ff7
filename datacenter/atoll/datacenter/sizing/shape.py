"""Parameters and operations of a model by part, from the sizes in ``[model]`` only.

The parts are those of ``models.llama`` (Touvron et al. 2023); experts replace the feed-forward part (Shazeer et al.
2017). Counts are of the whole model; ``plan`` computes a rank's share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.sizing.formula import Figure, given, total

if TYPE_CHECKING:
    from atoll.datacenter.job.model import ModelSection


@dataclass(frozen=True, slots=True)
class Sizes:
    """The model's sizes as figures; ``kv_dim`` is the width of all keys, ``head_dim`` that of one head."""

    vocab: Figure
    layers: Figure
    dim: Figure
    heads: Figure
    kv_heads: Figure
    head_dim: Figure
    ffn_dim: Figure
    experts: Figure
    top_k: Figure
    shared: Figure

    @classmethod
    def of(cls, model: ModelSection) -> Sizes:
        """Return the sizes in ``[model]``; with experts, ``ffn_dim`` is that of one expert."""
        moe = model.moe
        dim, heads = given("dim", model.dim), given("heads", model.heads)
        return cls(
            vocab=given("vocab", model.vocab),
            layers=given("layers", model.layers),
            dim=dim,
            heads=heads,
            kv_heads=given("kv_heads", model.kv_heads),
            head_dim=(dim / heads).called("head_dim")
            if model.head_dim * model.heads == model.dim
            else given("head_dim", model.head_dim),
            ffn_dim=given("expert_dim", moe.expert_dim) if moe else given("ffn_dim", model.ffn_dim),
            experts=given("experts", moe.experts if moe else 0),
            top_k=given("top_k", moe.top_k if moe else 0),
            shared=given("shared_experts", moe.shared_experts if moe else 0),
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """Elements by part, and which parts are trained.

    Attributes:
        sizes: sizes of the model.
        attention: queries, keys, values and output of one block; cut by tensor parallelism.
        dense: feed-forward part of one block, or its shared experts; cut by tensor parallelism.
        experts: all routed experts of one block; distributed by expert parallelism. 0 without.
        whole: norms, router and biases of one block, taken as the same on every tensor-parallel rank.
        embedding: cut along the vocabulary.
        output: last projection; 0 if it is tied to the embedding.
        last_norm: norm before it.
        adapters: adapters of one block, if only those are trained (LoRA), else 0.
        output_adapter: adapter of the output projection, or 0.
        frozen: whether the model itself is frozen.
        tied: whether output and embedding are tied.
    """

    sizes: Sizes
    attention: Figure
    dense: Figure
    experts: Figure
    whole: Figure
    embedding: Figure
    output: Figure
    last_norm: Figure
    adapters: Figure
    output_adapter: Figure
    frozen: bool
    tied: bool

    @property
    def block(self) -> Figure:
        """Elements of one block."""
        return total([self.attention, self.dense, self.experts, self.whole]).called("block parameters")

    @property
    def parameters(self) -> Figure:
        """Elements of the model."""
        parts = [self.sizes.layers * self.block, self.embedding, self.output, self.last_norm]
        return total(parts).called("parameters", "elements")

    @property
    def trained_adapters(self) -> Figure:
        """Elements of all adapters of the model."""
        found = self.sizes.layers * self.adapters
        return found + self.output_adapter if self.output_adapter.value else found

    @property
    def met(self) -> Figure:
        """Elements of one block's matrices that one token meets: of routed experts only those selected; no router."""
        sizes = self.sizes
        found = self.attention + self.dense
        return found + self.experts * sizes.top_k / sizes.experts if sizes.experts.value else found

    @property
    def idle(self) -> Figure:
        """Elements of one block that one token does not meet: experts that are not selected."""
        sizes = self.sizes
        return self.experts - self.experts * sizes.top_k / sizes.experts if sizes.experts.value else self.experts

    @property
    def active(self) -> Figure:
        """Elements that one token meets in matrix products: all but the embedding and the experts not selected."""
        sizes = self.sizes
        block = self.met + sizes.dim * sizes.experts if sizes.experts.value else self.met
        last = (sizes.vocab * sizes.dim).called("output")
        return (sizes.layers * block + last).called("active parameters", "elements")


def shape_of(model: ModelSection) -> Shape:
    """Return the shape of a Llama-style model.

    Raises:
        LayoutError: for models of other kinds, whose parts are unknown without building them.
    """
    if model.kind != "llama":
        raise LayoutError(
            f'model.kind = "{model.kind}": the planner knows the parts of "llama" models only; '
            "`atoll silo train --layout auto` replicates or shards this one by its size"
        )
    sizes = Sizes.of(model)
    dim, hidden = sizes.dim, sizes.ffn_dim
    attention = dim * sizes.head_dim * (2 * sizes.heads + 2 * sizes.kv_heads)
    dense = 3 * dim * hidden * sizes.shared if model.moe else 3 * dim * hidden
    whole = 2 * dim + dim * sizes.experts if model.moe else 2 * dim
    if model.qk_norm:
        whole = whole + 2 * sizes.head_dim
    if model.attention_bias:
        whole = whole + sizes.head_dim * (sizes.heads + 2 * sizes.kv_heads)
    return Shape(
        sizes=sizes,
        attention=attention.called("attention", "elements"),
        dense=dense.called("shared experts" if model.moe else "feed-forward", "elements"),
        experts=(3 * dim * hidden * sizes.experts).called("routed experts", "elements"),
        whole=whole.called("norms and router" if model.moe else "norms", "elements"),
        embedding=(sizes.vocab * dim).called("embedding", "elements"),
        output=given("output", 0.0, "elements", "tied: it is the embedding")
        if model.tied_embeddings
        else (sizes.vocab * dim).called("output", "elements"),
        last_norm=(dim * 1).called("last norm", "elements"),
        adapters=_adapters(model, sizes),
        output_adapter=_output_adapter(model, sizes),
        frozen=model.lora is not None,
        tied=model.tied_embeddings,
    )


def _adapters(model: ModelSection, sizes: Sizes) -> Figure:
    """Two factors for each adapted matrix (Hu et al. 2021, section 4.1): rank * (inputs + outputs)."""
    if model.lora is None:
        return given("adapters", 0.0, "elements")
    rank = given("lora rank", model.lora.rank)
    query, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    widths = {"wq": sizes.dim + query, "wk": sizes.dim + keys, "wv": sizes.dim + keys, "wo": query + sizes.dim}
    if model.moe is None or sizes.shared.value:
        hidden = sizes.ffn_dim * sizes.shared if model.moe else sizes.ffn_dim  # routed experts are no linear layers
        widths |= {"w1": sizes.dim + hidden, "w2": hidden + sizes.dim, "w3": sizes.dim + hidden}
    taken = [rank * width for name, width in widths.items() if name in model.lora.targets]
    return total(taken).called("adapters of a block", "elements")


def _output_adapter(model: ModelSection, sizes: Sizes) -> Figure:
    if model.lora is None or "output" not in model.lora.targets:
        return Figure(0.0)
    return given("lora rank", model.lora.rank) * (sizes.dim + sizes.vocab)
