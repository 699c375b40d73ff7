"""Participants that are trained together get the updates that each gets alone, up to rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from atoll.client import Settings, Task, Update, UsageError
from atoll.client.testing import make_task, model_of
from atoll.client.torch import to_array, travelling
from atoll.client.torch_batched import BatchedTorchParticipant

RELATIVE, ABSOLUTE = 1e-4, 1e-6
"""Tolerance of float32 after some tens of steps, whose sums are added in another order."""
SIZES = (23, 8, 40, 1)
"""Examples of the participants: different numbers of batches, and last batches of different sizes."""
OPTIMISERS: dict[str, Callable[[Any, Settings], torch.optim.Optimizer]] = {
    "sgd": lambda parameters, _: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters, _: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters, _: torch.optim.Adam(parameters, lr=0.01),
}


def net() -> torch.nn.Module:
    """A convolution, a nonlinearity and a layer that is not trained."""
    made = torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 6)),
        torch.nn.Conv1d(1, 3, 3),
        torch.nn.Flatten(),
        torch.nn.Tanh(),
        torch.nn.Linear(12, 12),
        torch.nn.Linear(12, 3),
    )
    for parameter in made[4].parameters():
        parameter.requires_grad = False
    return made


def participant(number: int, optimiser: str = "sgd", module: torch.nn.Module | None = None) -> BatchedTorchParticipant:
    random = torch.Generator().manual_seed(number)
    size = SIZES[number]
    data = TensorDataset(torch.randn(size, 6, generator=random), torch.randint(0, 3, (size,), generator=random))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    return BatchedTorchParticipant(module or net(), loader, torch.nn.functional.cross_entropy, OPTIMISERS[optimiser])


def travelled() -> dict[str, Any]:
    """The initial weights of a net."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return {name: to_array(tensor) for name, tensor in travelling(net(), "average").items()}


def tasks(**settings: Any) -> list[Task]:
    return [make_task(settings=Settings(settings), seed=number) for number in range(len(SIZES))]


def copied(update: Update) -> dict[str, Any]:
    assert update.weights is not None
    return {name: np.array(values) for name, values in update.weights.items()}


@pytest.mark.parametrize(("optimiser", "mu"), [("sgd", 0.0), ("momentum", 0.0), ("adam", 0.0), ("sgd", 0.5)])
def test_updates_are_those_of_each_alone(optimiser: str, mu: float) -> None:
    model, given = model_of(travelled()), tasks(epochs=2, proximal_mu=mu)
    together = BatchedTorchParticipant.fit_together([participant(n, optimiser) for n in range(4)], model, given)
    for number, (found, task) in enumerate(zip(together, given, strict=True)):
        alone = participant(number, optimiser).fit(model, task)
        assert (found.weight, found.partial) == (alone.weight, alone.partial) == (SIZES[number], False)
        assert found.metrics["loss"] == pytest.approx(alone.metrics["loss"], rel=RELATIVE)
        expected, updated = copied(alone), copied(found)
        assert expected.keys() == updated.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(updated[name], values, RELATIVE, ABSOLUTE, err_msg=f"{number}: {name}")
        assert any(np.abs(updated[name] - model[name]).max() > 100 * ABSOLUTE for name in updated)


def test_modules_that_cannot_be_stacked_are_refused() -> None:
    normed = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3))
    model = model_of({name: to_array(tensor) for name, tensor in travelling(normed, "average").items()})
    with pytest.raises(UsageError, match="with buffers cannot be trained together"):
        BatchedTorchParticipant.fit_together([participant(0, module=normed)], model, tasks()[:1])
    with pytest.raises(UsageError, match="the global model does not fit the module: it lacks the tensor"):
        BatchedTorchParticipant.fit_together([participant(0)], model, tasks()[:1])
