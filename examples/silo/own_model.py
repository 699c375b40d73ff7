"""A custom model that ``atoll silo train`` can train on any layout. The job file names it as ``own_model:spec``.

It is not a transformer: each token sees the mean of itself and all earlier tokens. Three properties make it fit every
layout:

- repeated blocks are in a ``ModuleDict``, keyed by number, so they can be sharded, compiled, recomputed and assigned to
  pipeline stages one by one;
- the parts before and after the blocks are attributes that may be None, for stages without them;
- matrices come in pairs, a *column* matrix into the wide part and a *row* matrix out of it, so tensor parallel needs
  one sum for each pair.

Run it (two processes, tensor parallel)::

    PYTHONPATH=examples/silo atoll silo train examples/silo/own_model.toml --nproc 2
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from atoll.datacenter.models import Constant, ModelSpec, Normal


class Mix(nn.Module):
    """The mean of all tokens so far, passed through two matrices."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.wide = nn.Linear(dim, hidden, bias=False)
        self.narrow = nn.Linear(hidden, dim, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [batch, sequence, dim] to the same shape; the input is the whole sequence, also under tensor parallel."""
        seen = torch.ones_like(hidden).cumsum(dim=1)  # made from the input, which may be a DTensor
        mean = hidden.cumsum(dim=1) / seen
        mixed: Tensor = self.narrow(functional.gelu(self.wide(hidden + mean)))
        return mixed


class Block(nn.Module):
    """A norm and a mix with a residual connection."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.mix_norm = nn.RMSNorm(dim)
        self.mix = Mix(dim, hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [batch, sequence, dim] to the same shape."""
        mixed: Tensor = hidden + self.mix(self.mix_norm(hidden))
        return mixed


class Model(nn.Module):
    """Map tokens to logits; a pipeline stage without the embedding or the output takes or returns hidden states."""

    def __init__(self, vocab: int, dim: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed: nn.Embedding | None = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleDict({str(number): Block(dim, hidden) for number in range(layers)})
        self.norm: nn.RMSNorm | None = nn.RMSNorm(dim)
        self.output: nn.Linear | None = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64 [batch, sequence] to logits [batch, sequence, vocab]."""
        hidden: Tensor = tokens if self.embed is None else self.embed(tokens)
        for block in self.blocks.values():
            hidden = block(hidden)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return hidden if self.output is None else self.output(hidden)


def initial(_name: str, shape: tuple[int, ...]) -> Normal | Constant:
    """How to initialise each parameter: norms with 1, matrices with small random numbers."""
    return Constant(1.0) if len(shape) == 1 else Normal(0.02)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The *sum* of the tokens' losses; labels of -100 do not count."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum", ignore_index=-100)


def spec(settings: Mapping[str, bool | int | float | str]) -> ModelSpec:
    """The model's spec, for the values of ``[model.settings]``."""
    vocab, dim, hidden, layers = (int(settings[key]) for key in ("vocab", "dim", "hidden", "layers"))
    return ModelSpec(
        build=lambda: Model(vocab, dim, hidden, layers),
        initial=initial,
        blocks="blocks",
        first=("embed",),
        last=("norm", "output"),
        loss=loss,
        tensor={
            "embed": "embedding",
            "mix_norm": "norm",
            "mix.wide": "column",
            "mix.narrow": "row",
            "norm": "norm",
            "output": "output",
        },
        entries={"mix": 1},  # its one input is gathered along the sequence
    )
