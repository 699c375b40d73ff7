"""What a model must say of itself to be trained on many ranks.

``[model] kind`` names one: ``llama`` and ``vision`` are ours; ``module:function`` is the user's, a function that takes
``[model.settings]`` and gives a ``ModelSpec``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from torch import Tensor, nn

Initial: TypeAlias = Callable[[str, tuple[int, ...]], "Normal | Constant"]
"""From a parameter's name and whole shape to how it is filled."""
Foreign: TypeAlias = Callable[[str], tuple[str, ...]]
"""From a parameter's name to its tensor's in a Hugging Face checkpoint, or for each index of its first dim one; none if
it has no place there."""
Cut: TypeAlias = Literal["column", "row", "norm", "embedding", "output"]
"""How tensor parallel treats a module: its output dim cut, its input dim cut, only its activations cut along the
sequence, an embedding cut along the vocabulary, or the last projection."""
TRANSFORMER_CUTS: dict[str, Cut] = {
    "norm": "norm",
    "output": "output",
    "attention_norm": "norm",
    "attention.wq": "column",
    "attention.wk": "column",
    "attention.wv": "column",
    "attention.wo": "row",
    "ffn_norm": "norm",
}
"""What our transformers have in common; embeddings and feed-forward parts are their own."""


@dataclass(frozen=True, slots=True)
class Normal:
    """Normal with mean 0 and this standard deviation."""

    std: float


@dataclass(frozen=True, slots=True)
class Constant:
    """One value."""

    value: float


@dataclass(frozen=True)
class ModelSpec:
    """How to make a model and how to cut it.

    Attributes:
        build: makes the whole module; called on the meta device, must draw no random numbers that matter.
        initial: how each parameter and each buffer is filled.
        blocks: name of the ``ModuleDict`` of repeated blocks: the units of sharding, checkpointing,
            compilation and pipeline stages; its keys are "0", "1", …
        first: names of modules that stand before the blocks, in the first pipeline stage.
        last: names of modules that stand after them, in the last.
        tensor: module name → cut; names of modules in a block are relative to it, those outside are whole. Empty: the
            model cannot be cut by tensor parallel.
        entries: modules of a block whose first input is gathered along the sequence when ``sequence`` is on (those that
            hold the column-cut matrices) → how many inputs they take.
        loss: sum of losses over a batch: ``(outputs, labels) -> Tensor`` of no dims; labels of -100 do not count.
        tied: pairs of parameter names that are one parameter.
        attention: module of a block that mixes positions, for context parallel to put another in its place: called with
            query, key and value ``[batch, sequence, heads, head_dim]``, causal. The whole model then takes positions
            from its attribute ``positions``, see ``models.llama``. None: its sequence cannot be cut. Experts need not
            be named: ``models.moe.RoutedExperts`` are found by their class.
        trained: which parameters, by name, are trained; None: all.
        foreign: where parameters lie in a Hugging Face checkpoint; None: the model has no such form.
    """

    build: Callable[[], nn.Module]
    initial: Initial
    blocks: str
    first: tuple[str, ...]
    last: tuple[str, ...]
    loss: Callable[[Tensor, Tensor], Tensor]
    tensor: Mapping[str, Cut] = field(default_factory=dict)
    entries: Mapping[str, int] = field(default_factory=dict)
    tied: tuple[tuple[str, str], ...] = ()
    attention: str | None = None
    trained: Callable[[str], bool] | None = None
    foreign: Foreign | None = None
