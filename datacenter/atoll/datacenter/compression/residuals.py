"""Error feedback: what a rank could not send is added to the next gradient (Seide et al. 2014, section 3).

DDP rebuilds its buckets after the first step of a process, in the order in which gradients became ready. Residuals are
therefore kept by parameter name, and each parameter begins a new block, so that messages do not depend on the bucket of
a parameter. A resumed job thus sends what an uninterrupted one would have sent.

Memory: one float32 per element of the model, including padding to whole blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch import nn
    from torch._C._distributed_c10d import GradBucket


@dataclass(frozen=True)
class Flat:
    """Residuals of one bucket's parameters, concatenated.

    Attributes:
        names: names of the parameters.
        values: float32 ``[blocks, block]``: residuals; 0 where there is padding.
        parts: views of ``values``, one for each parameter, without padding.
        sizes: float32 ``[blocks]``: elements that are not padding.
        numbers: int64 ``[blocks]``: number of each block in the whole model.
    """

    names: tuple[str, ...]
    values: Tensor
    parts: tuple[Tensor, ...]
    sizes: Tensor
    numbers: Tensor
    _lasts: Tensor
    _inside: Tensor

    def without_padding(self, values: Tensor) -> Tensor:
        """Set padding to zero, in place; ``[blocks, block]``."""
        values[self._lasts] *= self._inside
        return values

    def parts_of(self, values: Tensor) -> tuple[Tensor, ...]:
        """Return views of a tensor shaped like ``values``, one for each parameter, without padding."""
        flat, block = values.view(-1), self.values.shape[1]
        starts = accumulate((_blocks(part.numel(), block) * block for part in self.parts), initial=0)
        return tuple(flat[start : start + part.numel()] for start, part in zip(starts, self.parts, strict=False))


class Residuals:
    """Residuals of a model's parameters on one rank, an ``Extra`` of checkpoints.

    Args:
        parameters: the trained ones, by name; their order numbers the blocks, the same on every rank.
        block: elements of a block; each parameter is padded to whole blocks.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], block: int) -> None:
        self.block = block
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
        counts = [_blocks(parameter.numel(), block) for parameter in parameters.values()]
        self._first = dict(zip(parameters, accumulate(counts, initial=0), strict=False))
        self._kept: dict[str, Tensor] = {}
        self._flats: dict[tuple[str, ...], Flat] = {}

    def names(self, bucket: GradBucket) -> tuple[str, ...]:
        """Return the names of a bucket's parameters."""
        return tuple(self._names[parameter] for parameter in bucket.parameters())

    def add(self, bucket: GradBucket) -> Flat:
        """Add a bucket's gradients to the residuals of its parameters, in place."""
        flat = self._flat(bucket)
        for part, gradient in zip(flat.parts, pieces(bucket), strict=True):
            part.add_(gradient)
        return flat

    def state_dict(self) -> dict[str, Tensor]:
        """Return residuals by parameter name, flat float32, not copied; empty before the first step."""
        return dict(self._kept)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore residuals.

        Raises:
            ValueError: if a name or a number of elements does not match the model.
        """
        sizes = {name: parameter.numel() for parameter, name in self._names.items()}
        for name, value in state.items():
            if sizes.get(name) != value.numel():
                raise ValueError(f"residual of {name}: {value.numel()} elements, the model has {sizes.get(name, 0)}")
        self._flats.clear()
        self._kept = {name: value.detach().flatten().to(torch.float32) for name, value in state.items()}

    def _flat(self, bucket: GradBucket) -> Flat:
        names = self.names(bucket)
        if names not in self._flats:
            gone = [known for known in self._flats if not set(known).isdisjoint(names)]
            flat = self._lay_out(names, pieces(bucket))
            for known in gone:
                del self._flats[known]
            self._flats[names] = flat
            self._kept.update(zip(names, flat.parts, strict=True))
        return self._flats[names]

    def _lay_out(self, names: tuple[str, ...], like: Sequence[Tensor]) -> Flat:
        """Allocate memory for these parameters, filled with the residuals kept for them."""
        device, block = like[0].device, self.block
        counts = [_blocks(piece.numel(), block) for piece in like]
        values = torch.zeros(sum(counts), block, dtype=torch.float32, device=device)
        sizes = torch.full((sum(counts),), block, dtype=torch.float32)
        lasts = torch.tensor(list(accumulate(counts)), dtype=torch.int64) - 1
        in_last = torch.tensor([(piece.numel() - 1) % block + 1 for piece in like])
        sizes[lasts] = in_last.to(torch.float32)
        numbers = torch.cat(
            [self._first[name] + torch.arange(count) for name, count in zip(names, counts, strict=True)]
        )
        starts = [block * start for start in accumulate(counts, initial=0)]
        parts = tuple(
            values.view(-1)[start : start + piece.numel()] for start, piece in zip(starts, like, strict=False)
        )
        for name, part in zip(names, parts, strict=True):
            if name in self._kept:
                part.copy_(self._kept[name])
        inside = torch.arange(block)[None, :] < in_last[:, None]
        return Flat(names, values, parts, sizes.to(device), numbers.to(device), lasts.to(device), inside.to(device))


def pieces(bucket: GradBucket) -> list[Tensor]:
    """Return flat views of a bucket's buffer, one for each parameter, in memory order."""
    return list(torch.split(bucket.buffer(), [parameter.numel() for parameter in bucket.parameters()]))


def _blocks(elements: int, block: int) -> int:
    return -(-elements // block)
