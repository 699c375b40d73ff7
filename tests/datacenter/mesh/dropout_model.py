"""The example's own model with dropout of its hidden states, which the ranks of a ``tp`` group hold whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from atoll.datacenter.models import ModelSpec


def spec(settings: Mapping[str, bool | int | float | str]) -> ModelSpec:
    """Called with ``[model.settings]``; ``examples/silo`` is on the path."""
    without: ModelSpec = import_module("own_model").spec(settings)

    def build() -> nn.Module:
        module: nn.Module = without.build()
        for name, part in module.named_modules():
            if name.endswith("mix_norm") or (name.startswith("blocks.") and name.count(".") == 1):
                part.register_forward_hook(_dropout)
        return module

    return replace(without, build=build)


def _dropout(module: nn.Module, _inputs: Any, hidden: Tensor) -> Tensor:
    return functional.dropout(hidden, 0.3, training=module.training)
