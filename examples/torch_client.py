"""A small convolutional network over handwritten digits.

    pip install -c constraints.txt -e ".[torch]" scikit-learn
    atoll client start examples/torch_client.py:digits --arg shard=3 --arg shards=8 --join @token.txt

``python examples/torch_client.py`` writes the initial weights to initial.safetensors, for the operator's job.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from atoll.client.torch import TorchParticipant, save_initial


def network() -> nn.Module:
    """64 pixels to scores of 10 classes; batch norm's statistics are sent like weights."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 16, 10),
    )


def digits(shard: int = 0, shards: int = 8) -> TorchParticipant:
    """One of ``shards`` participants: every ``shards``-th image is its own, one in five of them held out."""
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(
        torch.tensor(images[shard::shards] / 16, dtype=torch.float32), torch.tensor(labels[shard::shards])
    )
    held_out = list(range(0, len(data), 5))
    own = [index for index in range(len(data)) if index % 5]
    return TorchParticipant(
        module=network(),
        loader=DataLoader(torch.utils.data.Subset(data, own), batch_size=16, shuffle=True),
        loss=nn.functional.cross_entropy,
        optimiser=lambda parameters, settings: torch.optim.SGD(parameters, lr=settings.number("lr", 0.1)),
        evaluation=DataLoader(torch.utils.data.Subset(data, held_out), batch_size=64),
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    save_initial(network(), "initial.safetensors")
