"""Handwritten digits with DP-SGD: updates reveal little about any single image, even to the server.

    pip install -c constraints.txt -e ".[privacy,torch]" scikit-learn
    atoll client start examples/opacus_client.py:digits --arg shard=3 --arg shards=8 --join @token.txt

``python examples/opacus_client.py`` writes the initial weights to initial.safetensors, for the operator's job. The job
needs ``final = false`` in ``[evaluation]``, because this client has no images to evaluate on. ``atoll client status``
shows the spent epsilon.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from atoll.client.opacus import DpSgd, Limit, OpacusParticipant
from atoll.client.torch import save_initial


def network() -> nn.Module:
    """64 pixels to scores of 10 classes; layer norm, because batch norm mixes images."""
    return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 10))


def digits(shard: int = 0, shards: int = 8, epsilon: float = 8.0) -> OpacusParticipant:
    """One of ``shards`` participants: every ``shards``-th image is its own."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images[shard::shards] / 16, dtype=torch.float32)
    own = TensorDataset(pixels, torch.tensor(labels[shard::shards]))
    return OpacusParticipant(
        module=network(),
        loader=DataLoader(own, batch_size=64),
        loss=nn.functional.cross_entropy,
        optimiser=lambda parameters, settings: torch.optim.SGD(parameters, lr=settings.number("lr", 0.5)),
        privacy=DpSgd(noise_multiplier=1.5, max_grad_norm=1.0, limit=Limit(epsilon, delta=1e-4)),
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    save_initial(network(), "initial.safetensors")
