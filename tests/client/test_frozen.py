"""Frozen tensors on the participant's side: torch does not train them, updates may leave them out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from atoll.client import Settings, Update
from atoll.client.errors import UpdateError
from atoll.client.opacus import DpSgd, Limit, OpacusParticipant
from atoll.client.testing import FakeServer, make_task, model_of
from atoll.client.torch import TorchParticipant, to_array, travelling
from atoll.client.torch_batched import BatchedTorchParticipant
from atoll.client.update import check_update

FROZEN = ("0.*",)


def sgd(parameters: Iterable[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    del settings
    return torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))


def loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    draw = torch.Generator().manual_seed(2)
    inputs = torch.randn(20, 6, generator=draw)
    return DataLoader(TensorDataset(inputs, (inputs.sum(dim=1) > 0).long()), batch_size=5)


def initial() -> dict[str, np.ndarray]:
    return {name: to_array(tensor).copy() for name, tensor in travelling(network(), "average").items()}


@pytest.mark.parametrize("kind", [TorchParticipant, BatchedTorchParticipant])
def test_torch_trains_the_others_alone(kind: type[TorchParticipant]) -> None:
    participant, start = kind(network(), loader(), nn.functional.cross_entropy, sgd), initial()
    task = make_task(frozen=FROZEN)
    if isinstance(participant, BatchedTorchParticipant):
        (update,) = type(participant).fit_together([participant], model_of(start), [task])
    else:
        update = participant.fit(model_of(start), task)
    for name, values in update.tensors.items():
        assert np.array_equal(values, start[name]) == name.startswith("0."), name
    assert all(parameter.requires_grad for parameter in participant.module.parameters())


def test_dp_sgd_trains_the_others_alone(tmp_path: Path) -> None:
    privacy = DpSgd(1.0, 1.0, Limit(1000.0, 1e-5))
    participant = OpacusParticipant(network(), loader(), nn.functional.cross_entropy, sgd, privacy=privacy)
    participant.prepare(tmp_path)
    start = initial()
    update = participant.fit(model_of(start), make_task(frozen=FROZEN))
    for name, values in update.tensors.items():
        assert np.array_equal(values, start[name]) == name.startswith("0."), name


def test_an_update_may_leave_out_what_is_frozen_and_nothing_else() -> None:
    model = model_of({"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)})
    task = make_task(frozen=("a",))
    check_update(Update(delta={"b": np.ones(3)}, weight=1), model.layout, task)
    check_update(Update(delta={"a": np.ones(2), "b": np.ones(3)}, weight=1), model.layout, task)
    with pytest.raises(UpdateError, match="lacks the tensor 'b'"):
        check_update(Update(delta={"a": np.ones(2)}, weight=1), model.layout, task)
    with pytest.raises(UpdateError, match="lacks the tensor 'a'"):
        check_update(Update(delta={"b": np.ones(3)}, weight=1), model.layout, make_task())


def test_the_fake_server_freezes_too() -> None:
    start = initial()
    participant = TorchParticipant(network(), loader(), nn.functional.cross_entropy, sgd)
    ended = FakeServer(start, frozen=FROZEN).run(participant, rounds=2).model
    for name, values in start.items():
        assert np.array_equal(ended[name], values) == name.startswith("0."), name
