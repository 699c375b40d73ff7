"""Families of ``…ForCausalLM`` checkpoints that our blocks support: what each implies, and which fits a ``[model]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.datacenter.errors import LayoutError

if TYPE_CHECKING:
    from atoll.datacenter.job.model import ModelSection

GELU_TANH = "gelu_pytorch_tanh"
_DEFAULTS: Mapping[str, bool | str] = {
    "attention_bias": False,
    "qk_norm": False,
    "activation": "silu",
    "norm_offset": False,
    "scaled_embeddings": False,
}
"""Settings of ``[model]`` that a family decides, with the values of Llama."""


@dataclass(frozen=True, slots=True)
class Family:
    """One ``model_type``.

    Attributes:
        architecture: name of the class in ``transformers``.
        differs: our settings that are not Llama's.
        activations: allowed values of ``hidden_act``, the first is written.
        head_dim: width of a head where the config does not say; None: width / heads.
        tied: whether embeddings are tied where the config does not say.
        written: whether a ``[model]`` is written as this family.
    """

    architecture: str
    differs: Mapping[str, bool | str] = field(default_factory=dict)
    activations: tuple[str, ...] = ("silu",)
    head_dim: int | None = None
    tied: bool = False
    written: bool = True

    @property
    def settings(self) -> dict[str, bool | str]:
        """Our settings that the family decides."""
        return {**_DEFAULTS, **self.differs}


FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM"),
    "mixtral": Family("MixtralForCausalLM", written=False),  # chosen by [model.moe]
    "qwen2": Family("Qwen2ForCausalLM", {"attention_bias": True}),
    "qwen3": Family("Qwen3ForCausalLM", {"qk_norm": True}, head_dim=128),
    "gemma": Family(
        "GemmaForCausalLM",
        {"activation": "gelu_tanh", "norm_offset": True, "scaled_embeddings": True},
        (GELU_TANH, "gelu"),  # published as "gelu", computed as its approximation by tanh
        head_dim=256,
        tied=True,
    ),
    "mistral": Family("MistralForCausalLM", written=False),  # the same as llama if there is no sliding window
}

_SOFT_CAPS = (
    "its attention scores and logits have soft caps, and its blocks have norms after each part and sliding windows"
)
LACKING: Mapping[str, str] = {
    "gemma2": _SOFT_CAPS,
    "gemma3_text": "its blocks have norms after each part, sliding windows and two bases of rotary positions",
    "gemma3": "it reads images; its blocks have norms after each part and sliding windows",
    "qwen2_moe": "its shared expert has a gate",
    "qwen3_moe": "it combines experts with norms of queries and keys, which [model.moe] does not support",
    "phi3": "its matrices are fused, and its rotary positions are scaled in another way",
}
"""Well-known related families that our blocks do not support, and why."""


def family_of(model: ModelSection) -> str:
    """Return the ``model_type`` under which a model is written.

    Raises:
        LayoutError: if no family has this combination of settings; names it.
    """
    ours = {key: getattr(model, key) for key in _DEFAULTS}
    if model.moe is not None:
        if (differing := _named(ours, FAMILIES["mixtral"].settings)) or model.rope_scaling is not None:
            said = differing or "rope_scaling"
            raise LayoutError(f"[model.moe] with {said}: a Mixtral checkpoint cannot hold them")
        return "mixtral"
    for kind, family in FAMILIES.items():
        if family.written and family.settings == ours:
            return kind
    known = ", ".join(kind for kind, family in FAMILIES.items() if family.written)
    raise LayoutError(
        f"model: {_named(ours, _DEFAULTS)} together are of no Hugging Face architecture that is known here ({known})"
    )


def _named(ours: Mapping[str, object], theirs: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in ours.items() if value != theirs[key])
