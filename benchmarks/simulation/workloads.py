"""The workload of every simulator: the same rows, module and steps. Needs only numpy and torch."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float32]
BATCH, LEARNING_RATE = 10, 0.1
CORES = 2


@dataclass(frozen=True)
class Workload:
    """The distribution of rows, and the length of training.

    Attributes:
        hidden: width of the hidden layer; 0 for logistic regression.
        size: members of a round.
        rounds: rounds of training; only the last model is evaluated.
        x: training rows of shape (rows, features).
        y: their labels.
        starts: participant k has the rows starts[k] to starts[k + 1].
        x_test: rows that no participant has.
        y_test: their labels.
    """

    hidden: int
    size: int
    rounds: int
    x: torch.Tensor
    y: torch.Tensor
    starts: npt.NDArray[np.int64]
    x_test: torch.Tensor
    y_test: torch.Tensor

    @classmethod
    def read(cls, path: str) -> Workload:
        """Load from a file of ``save``."""
        with np.load(path) as kept:
            hidden, size, rounds = (int(kept[name]) for name in ("hidden", "size", "rounds"))
            x, y, x_test, y_test = (torch.from_numpy(kept[name]) for name in ("x", "y", "x_test", "y_test"))
            return cls(hidden, size, rounds, x, y, kept["starts"], x_test, y_test)

    @property
    def population(self) -> int:
        """Number of participants."""
        return len(self.starts) - 1

    def rows(self, participant: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of a participant."""
        mine = slice(int(self.starts[participant]), int(self.starts[participant + 1]))
        return self.x[mine], self.y[mine]

    def module(self) -> torch.nn.Module:
        """The model, with the same first weights everywhere."""
        torch.manual_seed(1)
        features, classes = self.x.shape[1], 10
        if not self.hidden:
            return torch.nn.Linear(features, classes)
        return torch.nn.Sequential(
            torch.nn.Linear(features, self.hidden), torch.nn.ReLU(), torch.nn.Linear(self.hidden, classes)
        )

    def accuracy(self, module: torch.nn.Module) -> float:
        """Share of the held-out rows that the model classifies correctly."""
        with torch.no_grad():
            return float((module(self.x_test).argmax(1) == self.y_test).float().mean())


def train(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """One pass of plain SGD over these rows; the mean loss."""
    optimiser = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
    total = 0.0
    for start in range(0, len(x), BATCH):
        optimiser.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(module(x[start : start + BATCH]), y[start : start + BATCH])
        torch.autograd.backward(loss)
        optimiser.step()
        total += float(loss.detach()) * len(x[start : start + BATCH])
    return total / len(x)


def weights_of(module: torch.nn.Module) -> dict[str, Floats]:
    """Copies of the weights by name."""
    return {name: tensor.detach().numpy().copy() for name, tensor in module.named_parameters()}


def load(module: torch.nn.Module, weights: Sequence[Floats]) -> None:
    """Load weights into the module, in the order of its parameters."""
    with torch.no_grad():
        for tensor, values in zip(module.parameters(), weights, strict=True):
            tensor.copy_(torch.from_numpy(np.array(values, np.float32)))


def main(play: Callable[[Workload], torch.nn.Module]) -> None:
    """Read the workload named on the command line, train, and print the accuracy and the seconds of training."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    torch.set_num_threads(1)
    workload = Workload.read(parser.parse_args().workload)
    began = time.perf_counter()
    module = play(workload)
    seconds = time.perf_counter() - began
    print(json.dumps({"accuracy": workload.accuracy(module), "seconds": seconds}), flush=True)
