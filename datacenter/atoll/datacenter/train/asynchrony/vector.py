"""A model's parameters and gradients, concatenated in one float32 vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def size_of(parameters: Sequence[nn.Parameter]) -> int:
    """Return the number of elements of the vector."""
    return sum(parameter.numel() for parameter in parameters)


@torch.no_grad()
def read(parameters: Sequence[nn.Parameter], vector: Tensor) -> Tensor:
    """Copy the parameters into a vector on the same device, and return it."""
    return torch.cat([parameter.detach().flatten().to(torch.float32) for parameter in parameters], out=vector)


@torch.no_grad()
def read_gradients(parameters: Sequence[nn.Parameter], vector: Tensor) -> Tensor:
    """Copy the gradients into a vector on the same device, and return it; zeros where there is none."""
    found = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    return torch.cat([one.flatten().to(torch.float32) for one in found], out=vector)


@torch.no_grad()
def write(vector: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Copy a vector into the parameters."""
    for part, parameter in zip(_parts(vector, parameters), parameters, strict=True):
        parameter.copy_(part.view_as(parameter))


def write_gradients(vector: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Make the parts of a vector on the same device the gradients, without a copy."""
    for part, parameter in zip(_parts(vector, parameters), parameters, strict=True):
        parameter.grad = part.view_as(parameter)


def lay_over(vector: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Make the parameters views of a vector."""
    for part, parameter in zip(_parts(vector, parameters), parameters, strict=True):
        parameter.data = part.view_as(parameter)


def _parts(vector: Tensor, parameters: Sequence[nn.Parameter]) -> Sequence[Tensor]:
    return torch.split(vector, [parameter.numel() for parameter in parameters])
