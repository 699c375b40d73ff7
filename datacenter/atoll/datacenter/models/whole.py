"""The tensors of a model whose parts are on many ranks, whole and one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor

from atoll.datacenter.models.lora import merged

if TYPE_CHECKING:
    from atoll.datacenter.job.model import LoraSection
    from atoll.datacenter.models.spec import ModelSpec


@dataclass(frozen=True)
class WholeModel:
    """Collects one tensor after another; every rank asks for the same names in the same order.

    Attributes:
        shapes: shapes of the parameters and of the buffers that are saved, by name; tied ones once.
        buffers: which of them are buffers.
        tensor: returns a tensor by name on every rank; collective.
        writes: whether this rank is the one that writes files.
    """

    shapes: Mapping[str, Sequence[int]]
    buffers: frozenset[str]
    tensor: Callable[[str], Tensor]
    writes: bool

    @classmethod
    def of(cls, parts: Sequence[nn.Module], spec: ModelSpec) -> WholeModel:
        """Return the tensors of a model; collective.

        Memory: one whole tensor.

        Args:
            parts: this rank's model, or its pipeline stages.
            spec: spec of the whole model.
        """
        held: dict[str, Tensor] = {}
        for part in parts:
            held |= {name: value for name, value in get_model_state_dict(part).items() if isinstance(value, Tensor)}
        owners = _owners(held)

        @torch.no_grad()
        def tensor(name: str) -> Tensor:
            owner = owners[name]
            if name not in held:
                device = next(iter(held.values())).device
                return _sent(torch.empty(owner.shape, dtype=owner.dtype, device=device), owner)
            value = held[name]
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            return whole.detach() if owner.everywhere else _sent(whole.detach().contiguous(), owner)

        with torch.device("meta"):
            model = spec.build()
        buffers = dict(model.named_buffers())
        named = chain(model.named_parameters(), buffers.items())
        shapes = {name: tuple(value.shape) for name, value in named if name in owners}
        return cls(shapes, frozenset(buffers), tensor, not dist.is_initialized() or dist.get_rank() == 0)

    def merged(self, section: LoraSection | None) -> WholeModel:
        """Return the same model with its adapters merged, if it has any."""
        if section is None:
            return self
        shapes, tensor = merged(self.shapes, self.tensor, section)
        return replace(self, shapes=shapes, tensor=tensor)

    @torch.no_grad()
    def copy_into(self, targets: Mapping[str, Tensor]) -> None:
        """Copy one tensor after another; collective.

        Args:
            targets: tensors of this rank by name, on any device; empty if it only takes part.
        """
        for name in self.shapes:
            value = self.tensor(name)
            if name in targets:
                targets[name].copy_(value)


@dataclass(frozen=True)
class _Owner:
    """The first rank that holds a tensor.

    Attributes:
        rank: the rank.
        everywhere: whether all ranks hold it; a pipeline stage's is held by some.
        shape: its whole shape.
        dtype: its dtype.
    """

    rank: int
    everywhere: bool
    shape: tuple[int, ...]
    dtype: torch.dtype


def _owners(held: Mapping[str, Tensor]) -> dict[str, _Owner]:
    """Return the owner of each tensor; collective."""
    here = {name: (tuple(value.shape), value.dtype) for name, value in held.items()}
    ranks = [here]
    if dist.is_initialized():
        ranks = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(ranks, here)
    found: dict[str, _Owner] = {}
    for rank, tensors in enumerate(ranks):
        for name, (shape, dtype) in tensors.items():
            if name not in found:
                found[name] = _Owner(rank, all(name in other for other in ranks), shape, dtype)
    return found


def _sent(whole: Tensor, owner: _Owner) -> Tensor:
    """Send a tensor of one pipeline stage to all ranks, in place."""
    dist.broadcast(whole, owner.rank)
    return whole
