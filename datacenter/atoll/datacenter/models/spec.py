"""What a model declares so that it can be trained on many ranks.

``[model] kind`` names a spec: ``llama`` and ``vision`` are built in; ``module:function`` is the user's own function,
which takes ``[model.settings]`` and returns a ``ModelSpec``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from torch import Tensor, nn

from atoll.datacenter.errors import LayoutError

Initial: TypeAlias = Callable[[str, tuple[int, ...]], "Normal | Constant"]
"""Maps a parameter's name and whole shape to its initial distribution."""
Foreign: TypeAlias = Callable[[str], tuple[str, ...]]
"""Maps a parameter's name to the name of its tensor in a Hugging Face checkpoint, or one name for each index of its
first dim; empty if the checkpoint has no such tensor."""
Cut: TypeAlias = Literal["column", "row", "norm", "head_norm", "embedding", "output"]
"""How tensor parallelism treats a module: output dim cut, input dim cut, only activations cut along the sequence, norm
of ``[batch, sequence, heads, head_dim]`` whose heads are cut, embedding cut along the vocabulary, last projection."""
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
"""Cuts that our transformers have in common, without embeddings and feed-forward parts."""


@dataclass(frozen=True, slots=True)
class Normal:
    """Normal distribution with mean 0 and this standard deviation."""

    std: float


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant value."""

    value: float


@dataclass(frozen=True)
class ModelSpec:
    """How to build a model and how to cut it.

    Attributes:
        build: builds the whole module; called on the meta device, must not depend on random numbers.
        initial: initial distribution of each parameter and each buffer.
        blocks: name of the ``ModuleDict`` or ``ModuleList`` of repeated blocks, which are the units of sharding,
            checkpointing, compilation and pipeline stages; keys of a ``ModuleDict`` are "0", "1", … Empty: the
            module is one unit.
        first: names of the modules before the blocks, in the first pipeline stage.
        last: names of the modules after the blocks, in the last pipeline stage.
        tensor: module name → cut; names of modules in a block are relative to it, others are whole names. Empty: the
            model does not support tensor parallelism.
        entries: modules of a block whose first input is gathered along the sequence when ``sequence`` is on (those that
            contain the column-cut matrices) → number of inputs they take.
        loss: sum of losses over a batch, ``(outputs, labels) -> Tensor`` without dims; labels of -100 do not count.
        head: attribute of the whole model that is its last projection, a ``Linear`` without bias, if ``loss`` is the
            sum of cross entropies of its result; the loss can then be computed in chunks of tokens. None: whole logits.
        tied: pairs of parameter names that are the same parameter.
        attention: module of a block that mixes positions and that context parallelism replaces: called with query, key
            and value ``[batch, sequence, heads, head_dim]``, causal. The whole model then reads positions from its
            attribute ``positions``, see ``models.llama``. None: sequences cannot be divided. Experts need not be named:
            ``models.moe.RoutedExperts`` are found by their class.
        documents: whether the whole model takes ``documents`` and ``positions`` by name, int64 ``[batch, sequence]``,
            and attends within documents; see ``models.llama``.
        trained: predicate over names of parameters; None: all are trained.
        foreign: names of the parameters in a Hugging Face checkpoint; None: the model has no such form.
        weights: returns whole tensors to start from, parameters and buffers by name; the others are drawn by
            ``initial``. None: all are.
    """

    build: Callable[[], nn.Module]
    initial: Initial
    blocks: str
    first: tuple[str, ...]
    last: tuple[str, ...]
    loss: Callable[[Tensor, Tensor], Tensor]
    tensor: Mapping[str, Cut] = field(default_factory=dict)
    entries: Mapping[str, int] = field(default_factory=dict)
    head: str | None = None
    tied: tuple[tuple[str, str], ...] = ()
    attention: str | None = None
    documents: bool = False
    trained: Callable[[str], bool] | None = None
    foreign: Foreign | None = None
    weights: Callable[[], Mapping[str, Tensor]] | None = None

    def freeze(self, module: nn.Module) -> None:
        """Freeze the parameters that are not trained, in place."""
        if self.trained is not None:
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(self.trained(name))

    def blocks_of(self, module: nn.Module) -> dict[str, nn.Module]:
        """Return the blocks that a model, or a stage of it, has: by number in the whole model, in order.

        Raises:
            LayoutError: if the model has no such container of modules.
        """
        if not self.blocks:
            return {}
        try:
            container = module.get_submodule(self.blocks)
        except AttributeError:
            container = None
        if not isinstance(container, (nn.ModuleDict, nn.ModuleList)):
            found = "missing" if container is None else f"a {type(container).__name__}"
            raise LayoutError(
                f"the spec's blocks = {self.blocks!r} is {found} in the model: name a ModuleDict or ModuleList"
            )
        return dict(container.named_children())
