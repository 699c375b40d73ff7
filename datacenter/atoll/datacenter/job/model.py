"""``[model]``: the model to train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from atoll.settings import Hint, Section


def _kv_heads(found: dict[str, Any]) -> int:
    return int(found.get("heads", 1))


def _head_dim(found: dict[str, Any]) -> int:
    return max(1, int(found.get("dim", 128)) // max(1, int(found.get("heads", 4))))


def _ffn_dim(found: dict[str, Any]) -> int:
    """Return 8/3 of the width, rounded up to a multiple of 64 (Touvron et al. 2023, section 2.2)."""
    return -(-8 * int(found.get("dim", 64)) // 3 // 64) * 64


class MoeSection(Section):
    """Mixture of experts instead of each block's feed-forward part (Shazeer et al. 2017)."""

    experts: Annotated[int, Field(ge=2, le=4096, description="Experts of each block.")]
    top_k: Annotated[int, Field(ge=1, description="Experts that each token is routed to.")] = 2
    expert_dim: Annotated[int, Field(ge=1, description="Hidden width of one expert.")]
    shared_experts: Annotated[int, Field(ge=0, description="Further experts that every token passes through.")] = 0
    capacity_factor: Annotated[
        float | None,
        Field(
            gt=0,
            description="An expert takes at most this many times its even share of a sequence's tokens; further "
            "tokens skip it (Lepikhin et al. 2020, section 2.2). Without it no token is dropped.",
        ),
    ] = None
    padded: Annotated[
        bool,
        Field(
            description="Compute and send each expert's whole capacity, free places as zeros, so that the host never "
            "waits for the number of routed rows. Needs `capacity_factor`; the results are the same."
        ),
    ] = False
    balance: Annotated[
        Literal["loss", "bias", "none"],
        Field(
            description="How the load of experts is balanced. `loss`: an auxiliary loss over each sequence (Fedus et "
            "al. 2021, DeepSeek-AI 2024). `bias`: a bias on the routing scores that follows the load (Wang et al. "
            "2024)."
        ),
    ] = "loss"
    loss_weight: Annotated[float, Field(ge=0, description="Weight of the auxiliary loss.")] = 0.01
    bias_rate: Annotated[float, Field(gt=0, description="Step of the bias.")] = 0.001

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find a ``top_k`` above the number of experts, and settings of the other way to balance."""
        if self.top_k > self.experts:
            yield "top_k", f"is more than the {self.experts} experts"
        if self.padded and self.capacity_factor is None:
            yield "padded", "pads to the capacity: set capacity_factor too"
        if self.balance != "loss":
            yield from self.unused(("loss_weight",), f'balance = "{self.balance}"')
        if self.balance != "bias":
            yield from self.unused(("bias_rate",), f'balance = "{self.balance}"')


class LoraSection(Section):
    """Low-rank adapters; the model itself is frozen (Hu et al. 2021)."""

    rank: Annotated[int, Field(ge=1, le=4096, description="Rank of each adapter.")] = 8
    alpha: Annotated[float, Field(gt=0, description="Scale: an adapter's output is multiplied by alpha / rank.")] = 16.0
    targets: Annotated[
        tuple[str, ...],
        Field(min_length=1, strict=False, description="Last names of the linear layers that get an adapter."),
    ] = ("wq", "wv")


class RopeScalingSection(Section):
    """Rotary frequencies for longer sequences than the model was first trained on, as Llama 3.1 and later have them."""

    factor: Annotated[float, Field(gt=1, description="Low frequencies are divided by this.")]
    low_frequency: Annotated[
        float,
        Field(gt=0, description="Frequencies that turn less than this many times in `original_sequence` are divided."),
    ] = 1.0
    high_frequency: Annotated[
        float,
        Field(gt=0, description="Frequencies that turn more often than this stay; those in between are mixed."),
    ] = 4.0
    original_sequence: Annotated[int, Field(ge=1, description="Sequence length of the first training.")] = 8192

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find frequencies that overlap."""
        if self.low_frequency >= self.high_frequency:
            yield "low_frequency", f"is not below high_frequency = {self.high_frequency:g}"


_NOT_OF_IMAGES = ("head_dim", "qk_norm", "activation", "norm_offset", "scaled_embeddings")
_OF_OUR_BLOCKS = (
    *("vocab", "layers", "dim", "heads", "kv_heads", "ffn_dim", "rope_theta", "rope_scaling", "attention_bias"),
    *("norm_epsilon", "tied_embeddings", "moe", "settings", *_NOT_OF_IMAGES),
)


class ModelSection(Section):
    """The model to train. Sizes are those of a Llama-style transformer; `kind` selects other models."""

    kind: Annotated[
        str,
        Field(
            min_length=1,
            description="`llama`, `vision` (a small image classifier), `transformers` (any model of that library, from "
            "`weights`), or `module:function` for your own model; see the chapter on bringing your own.",
        ),
        Hint(allowed='"llama", "vision", "transformers", or "module:function"'),
    ] = "llama"
    vocab: Annotated[int, Field(ge=2, le=1 << 24, description="Size of the vocabulary; 256 for bytes.")] = 256
    layers: Annotated[int, Field(ge=1, le=4096, description="Transformer blocks.")] = 4
    dim: Annotated[int, Field(ge=2, le=1 << 20, description="Width of the residual stream.")] = 128
    heads: Annotated[int, Field(ge=1, description="Attention heads.")] = 4
    kv_heads: Annotated[
        int,
        Field(ge=1, default_factory=_kv_heads, description="Heads of keys and values (GQA, Ainslie et al. 2023)."),
        Hint(default="`heads`"),
    ]
    head_dim: Annotated[
        int,
        Field(ge=1, le=1 << 16, default_factory=_head_dim, description="Width of a head."),
        Hint(default="`dim` / `heads`"),
    ]
    ffn_dim: Annotated[
        int,
        Field(ge=1, default_factory=_ffn_dim, description="Hidden width of the feed-forward part (SwiGLU)."),
        Hint(default="8/3 `dim`, rounded up to a multiple of 64"),
    ]
    rope_theta: Annotated[float, Field(gt=0, description="Base of the rotary frequencies.")] = 10_000.0
    rope_scaling: Annotated[RopeScalingSection | None, Field(description="Scaled rotary frequencies.")] = None
    attention_bias: Annotated[bool, Field(description="Queries, keys and values have biases, as in Qwen2.")] = False
    qk_norm: Annotated[
        bool, Field(description="Queries and keys of each head have an RMSNorm, as in Qwen3 (Dehghani et al. 2023).")
    ] = False
    activation: Annotated[
        Literal["silu", "gelu_tanh"],
        Field(description="Activation of the gate in the feed-forward part; `gelu_tanh` as in Gemma."),
    ] = "silu"
    norm_offset: Annotated[
        bool, Field(description="Norms multiply by 1 + weight, so that weight decay pulls them to 1, as in Gemma.")
    ] = False
    scaled_embeddings: Annotated[
        bool, Field(description="Token embeddings are multiplied by the square root of `dim`, as in Gemma.")
    ] = False
    norm_epsilon: Annotated[float, Field(gt=0, description="RMSNorm's epsilon.")] = 1e-5
    tied_embeddings: Annotated[bool, Field(description="The output projection is the token embedding.")] = False
    weights: Annotated[
        str | None,
        Field(
            description="Hugging Face checkpoint to start from: a folder, relative to the job file, or the name of a "
            "model in the Hub's cache on this machine (`hf download NAME`). Sizes that the job leaves out are those of "
            "its config.json."
        ),
        Hint(allowed="the path of a folder with config.json and .safetensors files, or the name of a model"),
    ] = None
    moe: Annotated[MoeSection | None, Field(description="Mixture of experts.")] = None
    lora: Annotated[LoraSection | None, Field(description="Low-rank adapters.")] = None
    settings: Annotated[
        dict[str, bool | int | float | str],
        Field(
            default_factory=dict,
            description="Passed to your own model's function. For `vision`: `image`, `patch` and `channels`.",
        ),
        Hint(default="none"),
    ]

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find widths that the number of heads does not divide, and settings that the kind or experts do not use."""
        if self.dim % self.heads and "head_dim" not in self.model_fields_set:
            yield "heads", f"{self.heads} heads do not divide dim = {self.dim}: set model.head_dim, or another number"
        elif self.head_dim % 2:
            yield "heads", f"the head width {self.head_dim} is odd: rotary embeddings rotate pairs"
        if self.heads % self.kv_heads:
            yield "kv_heads", f"{self.kv_heads} do not divide the {self.heads} heads"
        if self.kind == "vision":
            yield from self.unused(_NOT_OF_IMAGES, 'kind = "vision"')
        if self.kind == "transformers":
            if self.weights is None:
                yield "weights", 'is missing: kind = "transformers" builds the model of a checkpoint'
            yield from self.unused(_OF_OUR_BLOCKS, 'kind = "transformers" takes the model as it is')
        if self.moe is not None and self.activation != "silu":
            yield "activation", "is silu in experts: leave it out, or [model.moe]"
