"""Generated text consists of the bytes that the model finds likely."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from atoll.datacenter.demo.sample import write_on


class Next(nn.Module):
    """Predicts the value after the last byte's, and records the lengths of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0

    def forward(self, text: Tensor) -> Tensor:
        self.longest = max(self.longest, text.shape[1])
        return 50.0 * nn.functional.one_hot((text + 1) % 256, 256).float()


def test_it_goes_on_from_the_start_and_sees_no_more_than_its_context() -> None:
    model = Next()
    assert write_on(model, b"abc", 5, 4, 0.7, 1) == "abcdefgh"
    assert model.longest == 4


def test_draws_are_the_seeds() -> None:
    def flat(text: Tensor) -> Tensor:
        return torch.zeros(1, text.shape[1], 256)

    class Flat(nn.Module):
        def forward(self, text: Tensor) -> Tensor:
            return flat(text)

    first, again, other = (write_on(Flat(), b"x", 30, 8, 1.0, seed) for seed in (1, 1, 2))
    assert first == again != other
