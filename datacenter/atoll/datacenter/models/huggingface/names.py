"""Names of parameters in our models and in Hugging Face's checkpoints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.datacenter.job.model import ModelSection

_OUTSIDE = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_BLOCK = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.wq.weight": "self_attn.q_proj.weight",
    "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight",
    "attention.wq.bias": "self_attn.q_proj.bias",
    "attention.wk.bias": "self_attn.k_proj.bias",
    "attention.wv.bias": "self_attn.v_proj.bias",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
}
_ROUTER = "feed_forward.routed.router.weight"
_EXPERTS = re.compile(r"feed_forward\.routed\.experts\.(w[123])")
_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")


def llama_names(model: ModelSection, name: str) -> tuple[str, ...]:
    """Return the tensors of a ``…ForCausalLM`` checkpoint of these families that make up one of our parameters.

    Args:
        model: ``[model]``.
        name: name of our parameter in the whole model.

    Returns:
        One name; for stacked experts one name for each index of the first dim; empty if there is no such tensor.
    """
    if model.tied_embeddings and name == "output.weight":
        name = "tok_embeddings.weight"
    if name in _OUTSIDE:
        return (_OUTSIDE[name],)
    if (found := _BLOCK.fullmatch(name)) is None:
        return ()
    prefix = f"model.layers.{found[1]}"
    if model.moe is not None and found[2] == _ROUTER:
        return (f"{prefix}.block_sparse_moe.gate.weight",)
    if model.moe is not None and (part := _EXPERTS.fullmatch(found[2])):
        return tuple(f"{prefix}.block_sparse_moe.experts.{n}.{part[1]}.weight" for n in range(model.moe.experts))
    return (f"{prefix}.{_IN_BLOCK[found[2]]}",) if found[2] in _IN_BLOCK else ()
