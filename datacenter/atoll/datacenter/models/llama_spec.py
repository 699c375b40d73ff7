"""Spec of the Llama-style model: how it is built, initialised and cut."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional

from atoll.datacenter.models.huggingface.names import llama_names
from atoll.datacenter.models.llama import Llama
from atoll.datacenter.models.spec import TRANSFORMER_CUTS, Constant, Cut, ModelSpec, Normal

if TYPE_CHECKING:
    from atoll.datacenter.job.model import ModelSection

IGNORED_LABEL = -100
_STD = 0.02
_CUTS: dict[str, Cut] = {**TRANSFORMER_CUTS, "tok_embeddings": "embedding"}
_HEAD_NORMS: dict[str, Cut] = {"attention.q_norm": "head_norm", "attention.k_norm": "head_norm"}
_FEED_FORWARD: dict[str, Cut] = {"w1": "column", "w3": "column", "w2": "row"}


def llama_spec(model: ModelSection) -> ModelSpec:
    """Return the spec of ``[model]`` of kind ``llama``."""
    residual_std = _STD / (2 * model.layers) ** 0.5

    def initial(name: str, shape: tuple[int, ...]) -> Normal | Constant:
        """Normal with 0.02; projections into the residual stream over sqrt(2 layers) (Radford et al. 2019, 2.3)."""
        if len(shape) == 1:
            return Constant(0.0 if name.endswith("bias") or model.norm_offset else 1.0)
        return Normal(residual_std if name.endswith(("wo.weight", "w2.weight", "w2")) else _STD)

    return ModelSpec(
        build=lambda: Llama(model),
        initial=initial,
        blocks="blocks",
        first=("tok_embeddings",),
        last=("norm", "output"),
        loss=token_loss,
        head="output",
        tensor=_CUTS | _feed_forward_cuts(model) | (_HEAD_NORMS if model.qk_norm else {}),
        entries={"attention": 2, "feed_forward": 1},
        tied=(("tok_embeddings.weight", "output.weight"),) if model.tied_embeddings else (),
        attention="attention.core",
        documents=True,
        foreign=partial(llama_names, model),
    )


def _feed_forward_cuts(model: ModelSection) -> dict[str, Cut]:
    """Cuts of the dense part, or of the shared experts; ``parallel.expert`` cuts the routed ones."""
    if model.moe is not None and not model.moe.shared_experts:
        return {}
    prefix = "feed_forward" if model.moe is None else "feed_forward.shared"
    return {f"{prefix}.{name}": cut for name, cut in _FEED_FORWARD.items()}


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of cross entropies in float32.

    Args:
        logits: ``[batch, sequence, vocab]``.
        labels: int64 ``[batch, sequence]``; -100 does not count.
    """
    return functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(0, 1), ignore_index=IGNORED_LABEL, reduction="sum"
    )
