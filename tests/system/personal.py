"""A torch participant with a personal head: ``atoll client start personal:Personal`` in this folder."""

from __future__ import annotations

import torch
from torch import nn

from atoll.client.torch_personal import PersonalTorchParticipant


class Net(nn.Module):
    """A shared body and a personal head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(torch.tanh(self.body(inputs)))
        return outputs


class Personal(PersonalTorchParticipant):
    """Trains and evaluates on its own batch."""

    def __init__(self) -> None:
        inputs = torch.linspace(-1.0, 1.0, 24).reshape(8, 3)
        batches = [(inputs, inputs.sum(1, keepdim=True))]
        super().__init__(
            Net(),
            batches,
            nn.functional.mse_loss,
            lambda parameters, _: torch.optim.SGD(parameters, lr=0.1),
            local=("head.*",),
            evaluation=batches,
            examples=8,
        )
