"""The example's own model with its blocks in a ``ModuleList``; its parameters have the same names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module

from torch import Tensor, nn

from atoll.datacenter.models import ModelSpec


class Listed(nn.Module):
    """Runs the parts of the example's model that are here."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.embed: nn.Module | None = model.get_submodule("embed")
        self.blocks = nn.ModuleList(model.get_submodule("blocks").children())
        self.norm: nn.Module | None = model.get_submodule("norm")
        self.output: nn.Module | None = model.get_submodule("output")

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [batch, sequence] to logits [batch, sequence, vocab]; hidden states on the stages between."""
        for part in (self.embed, *self.blocks, self.norm, self.output):
            tokens = tokens if part is None else part(tokens)
        return tokens


def spec(settings: Mapping[str, bool | int | float | str]) -> ModelSpec:
    """Called with ``[model.settings]``; ``examples/silo`` is on the path."""
    keyed: ModelSpec = import_module("own_model").spec(settings)
    return replace(keyed, build=lambda: Listed(keyed.build()))


def spec_of_a_layer(settings: Mapping[str, bool | int | float | str]) -> ModelSpec:
    """Names a layer as its blocks."""
    return replace(spec(settings), blocks="norm")
