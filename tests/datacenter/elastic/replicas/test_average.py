"""Buffers of gradients: weights, parameters without a gradient, and writing back."""

from __future__ import annotations

import torch
from torch import nn

from atoll.datacenter.elastic.replicas.average import flats_of


def parameters(*gradients: float | None) -> list[nn.Parameter]:
    found = [nn.Parameter(torch.zeros(2, 3)) for _ in gradients]
    for parameter, gradient in zip(found, gradients, strict=True):
        parameter.grad = None if gradient is None else torch.full((2, 3), gradient)
    return found


def test_the_sum_of_weighted_gradients_is_their_mean_by_tokens() -> None:
    """And what a group holds stays as it was, until the mean counts."""
    mine, theirs = parameters(4.0), parameters(8.0)
    (flat,), (other,) = flats_of(mine), flats_of(theirs)
    mean = flat.weighted(0.25) + other.weighted(0.75)
    assert mine[0].grad is not None
    assert set(mine[0].grad.flatten().tolist()) == {4.0}
    flat.apply(mean)
    assert set(mine[0].grad.flatten().tolist()) == {7.0}


def test_a_parameter_has_a_gradient_where_any_group_has_one() -> None:
    """Where none has one, the optimiser leaves the parameter alone, as without groups; frozen ones are not sent."""
    mine, theirs = parameters(4.0, None, None), parameters(2.0, 6.0, None)
    frozen = nn.Parameter(torch.zeros(100), requires_grad=False)
    (flat,), (other,) = flats_of([*mine, frozen]), flats_of(theirs)
    assert flat.zeros().numel() == 3 * 6 + 3
    flat.apply(flat.weighted(0.5) + other.weighted(0.5))
    first, second, third = (parameter.grad for parameter in mine)
    assert first is not None
    assert second is not None
    assert (set(first.flatten().tolist()), set(second.flatten().tolist()), third) == ({3.0}, {3.0}, None)


def test_formats_do_not_mix() -> None:
    mixed = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))]
    assert [flat.dtype for flat in flats_of(mixed)] == [torch.float32, torch.bfloat16]
