"""Clipping of each sample's gradient (Abadi et al. 2016, algorithm 1)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from atoll.datacenter.job.privacy import PrivacySection
from atoll.datacenter.privacy.clipping import make_clipper

LIMIT = 0.5
HUGE = 1e30


def clipped_sum(mode: str, inputs: list[float], scales: list[float]) -> list[float]:
    """Clip losses ``scale * (weight . input)``, whose gradients at weights of 0 are ``scale * input``."""
    module = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(module.weight)
    section = PrivacySection.model_validate({"noise_multiplier": 1.0, "max_grad_norm": LIMIT, "mode": mode})
    clipper = make_clipper(module, section)
    rows = torch.tensor([[value, 0.0] for value in inputs])
    clipper.backward(module(rows)[:, 0] * torch.tensor(scales))
    assert module.weight.grad is not None
    found: list[float] = module.weight.grad[0].tolist()
    return found


@pytest.mark.parametrize("mode", ["ghost", "hooks"])
def test_a_gradient_beyond_the_largest_float_adds_nothing_and_spoils_no_others(mode: str) -> None:
    assert clipped_sum(mode, [3.0, HUGE, 0.25], [1.0, HUGE, 1.0]) == pytest.approx([LIMIT + 0.25, 0.0], abs=1e-5)


@pytest.mark.parametrize("mode", ["ghost", "hooks"])
def test_gradients_within_the_limit_stay_as_they_are(mode: str) -> None:
    assert clipped_sum(mode, [0.125, 0.25, -0.5], [1.0, 1.0, 1.0]) == pytest.approx([-0.125, 0.0], abs=1e-5)
