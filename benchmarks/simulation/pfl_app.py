"""A workload run by pfl, in one process: ``python -m benchmarks.simulation.pfl_app WORKLOAD``, in pfl's environment."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

from benchmarks.simulation.workloads import BATCH, LEARNING_RATE, Workload, main


class _Net(torch.nn.Module):
    """The module with the loss that pfl requires."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: torch.Tensor, y: torch.Tensor, **_: Any) -> torch.Tensor:
        """Mean cross entropy of a batch."""
        return torch.nn.functional.cross_entropy(self.inner(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, **_: Any) -> dict[str, Any]:
        """None, because only the last model is evaluated."""
        del x, y
        return {}


def play(workload: Workload) -> torch.nn.Module:
    """Train without evaluation."""
    random = np.random.default_rng(1)
    net = _Net(workload.module())
    population = FederatedDataset(
        lambda number: Dataset(raw_data=list(workload.rows(number))), lambda: int(random.integers(workload.population))
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=workload.rounds,
            evaluation_frequency=workload.rounds + 1,
            train_cohort_size=workload.size,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=population, val_data=population, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=BATCH
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[],
    )
    return net.inner


if __name__ == "__main__":
    main(play)
