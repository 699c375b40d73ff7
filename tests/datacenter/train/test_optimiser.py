"""Learning rates, parameter groups, clipping."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import nn

from atoll.datacenter.job.training import OptimiserSection, ScheduleSection
from atoll.datacenter.train.optimiser import clip, gradient_norm, lr_at, make_optimiser


def rates(section: ScheduleSection, steps: int = 10) -> list[float]:
    return [lr_at(step, steps, 1.0, section) for step in range(steps)]


def test_it_rises_then_falls_to_the_floor() -> None:
    found = rates(ScheduleSection(warmup_steps=2, decay="linear", floor=0.2), 12)
    assert found[:3] == [0.5, 1.0, 1.0]
    assert found[-1] == pytest.approx(0.2 + 0.8 / 10)
    assert found[2:] == sorted(found[2:], reverse=True)
    assert lr_at(12, 12, 1.0, ScheduleSection(warmup_steps=2, decay="linear", floor=0.2)) == pytest.approx(0.2)


def test_cosine_is_half_way_in_the_middle() -> None:
    section = ScheduleSection(decay="cosine", floor=0.0)
    assert lr_at(5, 10, 2.0, section) == pytest.approx(1.0)


def test_stable_until_the_last_steps() -> None:
    found = rates(ScheduleSection(decay="linear", decay_steps=4, floor=0.0))
    assert found == pytest.approx([1.0] * 7 + [0.75, 0.5, 0.25])


def test_without_decay_it_stays() -> None:
    assert set(rates(ScheduleSection(decay="none"))) == {1.0}


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_beyond_the_last_step_it_stays_at_the_floor(decay: Literal["linear", "cosine"]) -> None:
    """A silo in a federation runs as many steps as the server asks for."""
    section = ScheduleSection(decay=decay, floor=0.1)
    assert [lr_at(step, 10, 1.0, section) for step in (10, 15, 1000)] == pytest.approx([0.1] * 3)


def test_matrices_decay_and_vectors_do_not() -> None:
    module = nn.Linear(3, 2)
    module.bias.requires_grad_()
    groups = make_optimiser(module.parameters(), OptimiserSection(weight_decay=0.3)).param_groups
    assert [(group["weight_decay"], len(group["params"])) for group in groups] == [(0.3, 1), (0.0, 1)]


def test_the_fused_update_is_that_of_a_loop_over_parameters() -> None:
    torch.manual_seed(5)
    section = OptimiserSection(lr=0.1, weight_decay=0.3)
    fused, looped = nn.Linear(3, 2), nn.Linear(3, 2)
    looped.load_state_dict(fused.state_dict())
    ours = make_optimiser(fused.parameters(), section)
    assert ours.defaults["fused"]
    kinds = [
        {"params": [looped.weight], "weight_decay": section.weight_decay},
        {"params": [looped.bias], "weight_decay": 0.0},
    ]
    plain = torch.optim.AdamW(kinds, section.lr, section.betas, section.epsilon, fused=False, foreach=False)
    for rows in torch.randn(5, 4, 3):
        for module, optimiser in ((fused, ours), (looped, plain)):
            optimiser.zero_grad()
            module(rows).square().sum().backward()
            optimiser.step()
    for one, other in zip(fused.parameters(), looped.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_what_is_frozen_is_not_trained() -> None:
    module = nn.Linear(3, 2)
    module.weight.requires_grad_(False)
    groups = make_optimiser(module.parameters(), OptimiserSection(name="sgd")).param_groups
    assert [parameter for group in groups for parameter in group["params"]] == [module.bias]


def test_clipping_as_pytorch_does_it() -> None:
    parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2))]
    twins = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    for one, other in zip(parameters, twins, strict=True):
        one.grad = torch.randn(one.shape, generator=torch.Generator().manual_seed(3))
        other.grad = one.grad.clone()
    norm = gradient_norm(parameters, None)
    clip(parameters, norm, 0.5)
    assert norm == torch.nn.utils.clip_grad_norm_(twins, 0.5)
    for one, other in zip(parameters, twins, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
