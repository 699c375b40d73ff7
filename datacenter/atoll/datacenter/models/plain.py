"""The spec of a plain ``nn.Module``: it declares nothing, so it is sharded or replicated, but never cut inside."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from atoll.datacenter.models.llama_spec import IGNORED_LABEL
from atoll.datacenter.models.spec import Constant, ModelSpec

Loss: TypeAlias = Callable[[Any, Tensor], Tensor]
"""Maps the module's output and labels to the sum of the losses that count."""


def plain_spec(
    module: nn.Module, loss: Loss | None = None, weights: Callable[[], nn.Module] | None = None
) -> ModelSpec:
    """Return the spec of a module that starts from its current weights.

    Its repeated blocks, the units of sharding, are found automatically: they are the container with the most parameters
    whose modules are all of one class, or of the classes that a model of ``transformers`` names as its blocks. A module
    without such a container is one unit.

    Args:
        module: not changed; its parameters and buffers are copied into the trained model.
        loss: default: ``cross_entropy_sum``.
        weights: returns the same module with the weights to start from; default: ``module`` has them.
    """
    return ModelSpec(
        build=lambda: _meta_copy(module),
        initial=lambda _name, _shape: Constant(0.0),  # never used: every tensor has its value in ``weights``
        blocks=find_blocks(module),
        first=(),
        last=(),
        loss=loss or cross_entropy_sum,
        tied=_tied(module),
        weights=lambda: tensors_of(module if weights is None else weights()),
    )


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name."""
    return dict(chain(module.named_parameters(), module.named_buffers()))


def cross_entropy_sum(outputs: Any, labels: Tensor) -> Tensor:
    """Return the sum of cross entropies in float32.

    Args:
        outputs: logits ``[..., classes]``, or an object with ``logits``, as models of ``transformers`` return.
        labels: int64 ``[...]``; -100 does not count.
    """
    logits: Tensor = getattr(outputs, "logits", outputs)
    flat = logits.flatten(0, -2).float()
    return functional.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum")


def find_blocks(module: nn.Module) -> str:
    """Return the name of the container of repeated blocks; empty if there is none."""
    named = frozenset(getattr(module, "_no_split_modules", None) or ())  # of ``transformers``: names of classes
    sizes = {
        name: sum(parameter.numel() for parameter in part.parameters())
        for name, part in module.named_modules()
        if name and _repeats(part, named)
    }
    return max(sizes, key=sizes.__getitem__, default="")


def _repeats(part: nn.Module, named: frozenset[str]) -> bool:
    """Whether this is a container of modules of one class, or of named classes only; named by number."""
    children = dict(part.named_children())
    numbered = list(children) == [str(number) for number in range(len(children))]
    classes = {type(child) for child in children.values()}
    alike = len(classes) == 1 or (bool(classes) and {one.__name__ for one in classes} <= named)
    return isinstance(part, nn.ModuleList | nn.ModuleDict) and numbered and alike


def _meta_copy(module: nn.Module) -> nn.Module:
    """Copy the module's structure; its tensors are on the meta device."""
    shells: dict[int, Any] = {}
    for tensor in _tensors(module):
        empty = torch.empty_like(tensor, device="meta")
        trained = tensor.requires_grad
        shells[id(tensor)] = nn.Parameter(empty, requires_grad=trained) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(module, shells).train()


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _tied(module: nn.Module) -> tuple[tuple[str, str], ...]:
    first: dict[int, str] = {}
    found = []
    for name, parameter in module.named_parameters(remove_duplicate=False):
        kept = first.setdefault(id(parameter), name)
        if kept != name:
            found.append((kept, name))
    return tuple(found)
