"""The cost of sample-level privacy on scikit-learn's small data sets: accuracy and planned signal-to-noise ratio.

Four participants train a linear classifier with DP-SGD (``atoll.client.opacus``) against ``FakeServer``. Each case is
the mean over seeds of held-out accuracy, with noise planned for an epsilon by ``atoll.accounting.plan_dp_sgd``,
compared with the same training without noise and clipping. The learning rate was chosen by accuracy on another seed;
with private data that choice would have to be charged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.datasets
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from atoll.accounting import DpSgdPlan, DpSgdTraining, plan_dp_sgd
from atoll.client import Settings
from atoll.client.opacus import DpSgd, Limit, OpacusParticipant
from atoll.client.testing import FakeServer
from atoll.client.torch import TorchParticipant
from benchmarks.figures import Figure
from benchmarks.options import Options, progress

PARTICIPANTS, ROUNDS, BATCH, DELTA = 4, 20, 32, 1e-4
EPSILONS = (0.3, 1.0, 3.0, 8.0)
SEEDS = (11, 12, 13)
HELD_OUT_SHARE = 0.25
CLIP = 1.0
LIMIT_SLACK = 1e-6
DATA = {"breast cancer": "load_breast_cancer", "wine": "load_wine", "digits": "load_digits"}
LEARNING_RATE = 0.5


@dataclass(frozen=True)
class Split:
    """A standardised data set, divided among participants; the rest is held out."""

    shares: tuple[TensorDataset, ...]
    held_out: tuple[torch.Tensor, torch.Tensor]
    features: int
    classes: int

    @property
    def rows(self) -> int:
        """Rows of the smallest share."""
        return min(len(share) for share in self.shares)

    @property
    def elements(self) -> int:
        """Parameters of a linear classifier."""
        return (self.features + 1) * self.classes

    @property
    def largest_class(self) -> float:
        """Accuracy of a model that has learned nothing."""
        counts = np.bincount(self.held_out[1].numpy())
        return float(counts.max() / counts.sum())


def split(name: str, seed: int) -> Split:
    """A scikit-learn data set, divided at random."""
    found = getattr(sklearn.datasets, DATA[name])()
    inputs: npt.NDArray[np.float64] = found.data
    spread = inputs.std(axis=0)
    scaled = torch.tensor((inputs - inputs.mean(axis=0)) / np.where(spread == 0, 1, spread), dtype=torch.float32)
    labels = torch.tensor(found.target, dtype=torch.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    held_out, rest = np.split(order, [int(len(order) * HELD_OUT_SHARE)])
    shares = tuple(TensorDataset(scaled[part], labels[part]) for part in np.array_split(rest, PARTICIPANTS))
    return Split(shares, (scaled[held_out], labels[held_out]), inputs.shape[1], int(labels.max()) + 1)


def planned(found: Split, epsilon: float) -> DpSgdPlan:
    """The plan that a data scientist would get from ``atoll privacy plan --rows ...``."""
    training = DpSgdTraining.of_epochs(found.rows, BATCH, ROUNDS, participants=PARTICIPANTS, elements=found.elements)
    return plan_dp_sgd(training, delta=DELTA, epsilon=epsilon)


def accuracy(found: Split, lr: float, plan: DpSgdPlan | None, seed: int, rounds: int = ROUNDS) -> float:
    """Held-out accuracy after all rounds; without a plan, training has no noise and no clipping."""
    torch.manual_seed(seed)
    participants = [_participant(found, share, lr, plan) for share in found.shares]
    start = {
        "weight": np.zeros((found.classes, found.features), np.float32),
        "bias": np.zeros(found.classes, np.float32),
    }
    ended = FakeServer(start).run(*participants, rounds=rounds)
    if any(one.declined for one in ended.rounds):
        raise RuntimeError(f"a participant declined a planned round: {ended.rounds[-1].declined}")
    inputs, labels = found.held_out
    scores = inputs.numpy() @ np.asarray(ended.model["weight"]).T + np.asarray(ended.model["bias"])
    return float((scores.argmax(axis=1) == labels.numpy()).mean())


def _participant(found: Split, share: TensorDataset, lr: float, plan: DpSgdPlan | None) -> TorchParticipant:
    def sgd(parameters: Iterable[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
        del settings
        return torch.optim.SGD(parameters, lr=lr)

    loader: DataLoader[Any] = DataLoader(share, batch_size=BATCH, shuffle=True)
    module, loss = nn.Linear(found.features, found.classes), nn.functional.cross_entropy
    if plan is None:
        return TorchParticipant(module, loader, loss, sgd)
    limit = Limit(plan.epsilon * (1 + LIMIT_SLACK), plan.delta)
    privacy = DpSgd(plan.noise_multiplier, CLIP, limit, accountant=plan.accountant)
    return OpacusParticipant(module, loader, loss, sgd, privacy=privacy)


def run(options: Options) -> list[Figure]:
    """All cases; takes some minutes."""
    seeds, epsilons = (SEEDS[:1], EPSILONS[-1:]) if options.smoke else (SEEDS, EPSILONS)
    names = list(DATA)[:1] if options.smoke else list(DATA)
    rounds = 1 if options.smoke else ROUNDS
    return [figure for name in names for figure in _of_data_set(name, epsilons, seeds, rounds, options)]


def _of_data_set(
    name: str, epsilons: tuple[float, ...], seeds: tuple[int, ...], rounds: int, options: Options
) -> list[Figure]:
    splits, lr = {seed: split(name, seed) for seed in seeds}, LEARNING_RATE
    command = options.command("privacy-samples")
    without = mean(accuracy(found, lr, None, seed, rounds) for seed, found in splits.items())
    first, largest = splits[seeds[0]], mean(one.largest_class for one in splits.values())
    figures = [
        Figure.stated(f"{name}: accuracy without noise", without, "", command),
        Figure.stated(f"{name}: share of the largest class", largest, "", command),
    ]
    for epsilon in epsilons:
        plan = planned(first, epsilon)
        reached = mean(accuracy(found, lr, plan, seed, rounds) for seed, found in splits.items())
        what = f"{name}, {first.rows} rows each, {first.elements} elements, epsilon {epsilon:g}"
        progress(f"{what}: signal/noise of the run {plan.of_run:.3g}, accuracy {reached:.3f} of {without:.3f}")
        figures += [
            Figure.stated(f"{what}: accuracy", reached, "", command, beside=without),
            Figure.stated("&nbsp;&nbsp;signal/noise of the run, at best", plan.of_run or 0.0, "", command),
        ]
    return figures
