"""A model of your own, trained by ``atoll silo train`` on any layout. Named in the job file as ``own_model:spec``.

It is no transformer: each token sees the mean of itself and those before it. Three things make it fit every layout:

- repeated blocks stand in a ``ModuleDict`` by number: they are sharded, compiled, recomputed and dealt to pipeline
  stages one by one;
- what stands before and after them has names that may be set to None, for the stages that do not have it;
- matrices come in pairs, a *column* one into the wide part and a *row* one out of it, so that tensor parallel needs
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
    """The mean of what came so far, through two matrices."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.wide = nn.Linear(dim, hidden, bias=False)
        self.narrow = nn.Linear(hidden, dim, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, sequence, dim] to the same. The whole sequence is here, also where tensor parallel cuts it."""
        seen = torch.ones_like(hidden).cumsum(dim=1)  # made from its input, for that may be a DTensor
        mean = hidden.cumsum(dim=1) / seen
        mixed: Tensor = self.narrow(functional.gelu(self.wide(hidden + mean)))
        return mixed


class Block(nn.Module):
    """A norm and a mix beside a residual."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.mix_norm = nn.RMSNorm(dim)
        self.mix = Mix(dim, hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, sequence, dim] to the same."""
        mixed: Tensor = hidden + self.mix(self.mix_norm(hidden))
        return mixed


class Model(nn.Module):
    """Tokens to logits; hidden states in or out where a pipeline stage lacks the parts."""

    def __init__(self, vocab: int, dim: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed: nn.Embedding | None = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleDict({str(number): Block(dim, hidden) for number in range(layers)})
        self.norm: nn.RMSNorm | None = nn.RMSNorm(dim)
        self.output: nn.Linear | None = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [batch, sequence] to logits [batch, sequence, vocab]."""
        hidden: Tensor = tokens if self.embed is None else self.embed(tokens)
        for block in self.blocks.values():
            hidden = block(hidden)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return hidden if self.output is None else self.output(hidden)


def initial(_name: str, shape: tuple[int, ...]) -> Normal | Constant:
    """How each parameter is filled: norms with 1, matrices with small random numbers."""
    return Constant(1.0) if len(shape) == 1 else Normal(0.02)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The *sum* of the losses of tokens; labels of -100 do not count."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum", ignore_index=-100)


def spec(settings: Mapping[str, bool | int | float | str]) -> ModelSpec:
    """Called with ``[model.settings]``."""
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
