"""The torch adapter against plain torch loops."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.utils.data import DataLoader, TensorDataset

from atoll.client import Settings, UsageError
from atoll.client.testing import FakeServer, make_task, model_of
from atoll.client.torch import TorchParticipant, layout_of, save_initial, to_array, travelling
from atoll.client.torch import load as load_model
from atoll.formats.safetensors import read_header
from atoll.wire.layout import Dtype

torch.manual_seed(0)
INPUTS = torch.randn(32, 6)
TARGETS = torch.randint(0, 3, (32,))
DATA = TensorDataset(INPUTS, TARGETS)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(8, 3)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.last(torch.relu(self.norm(self.first(inputs))))
        return outputs


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(4, 4, bias=False)
        self.out = torch.nn.Linear(4, 4, bias=False)
        self.out.weight = self.embed.weight


def sgd(parameters: Any, settings: Settings) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=settings.number("learning_rate", 0.1))


def participant(net: torch.nn.Module, **options: Any) -> TorchParticipant:
    loader = options.pop("loader", DataLoader(DATA, batch_size=8))
    return TorchParticipant(net, loader, torch.nn.functional.cross_entropy, sgd, **options)


def arrays(net: torch.nn.Module, buffers: Any = "average") -> dict[str, Any]:
    return {name: to_array(tensor).copy() for name, tensor in travelling(net, buffers).items()}


def plain_training(net: Net, *, epochs: int = 1, lr: float = 0.1, mu: float = 0.0) -> None:
    start = [parameter.detach().clone() for parameter in net.parameters()]
    optimiser = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    for _ in range(epochs):
        for inputs, targets in DataLoader(DATA, batch_size=8):
            optimiser.zero_grad()
            penalty = sum(((p - s) ** 2).sum() for p, s in zip(net.parameters(), start, strict=True))
            loss = torch.nn.functional.cross_entropy(net(inputs), targets) + mu / 2 * penalty
            torch.autograd.backward(loss)
            optimiser.step()


@pytest.mark.parametrize(("epochs", "mu"), [(1, 0.0), (3, 0.0), (2, 0.5)])
def test_one_round_is_the_plain_loop(epochs: int, mu: float) -> None:
    """FedProx's penalty enters as its gradient: Li et al. 2020, eq. 2."""
    net, reference = Net(), Net()
    reference.load_state_dict(net.state_dict())
    start = arrays(net)
    result = FakeServer(start).run(
        participant(net), settings={"epochs": epochs, "proximal_mu": mu, "learning_rate": 0.05}
    )
    plain_training(reference, epochs=epochs, lr=0.05, mu=mu)
    for name, expected in arrays(reference).items():
        np.testing.assert_allclose(result.model[name], expected, rtol=1e-5, atol=1e-6)
    report = result.rounds[0].reports[0]
    assert (report.weight, report.partial) == (32, False)
    assert report.metrics["loss"] > 0


def test_several_rounds_learn() -> None:
    net = Net()
    trainer = participant(net, evaluation=DataLoader(DATA, batch_size=16))
    result = FakeServer(arrays(net)).run(trainer, rounds=15, settings={"learning_rate": 0.3})
    losses = [played.reports[0].evaluation["loss"] for played in result.rounds]
    assert losses[-1] < 0.8 * losses[0]
    assert set(result.rounds[0].reports[0].evaluation) == {"loss", "accuracy"}


def test_parameters_and_float_buffers_are_shared_by_default() -> None:
    names = [spec.name for spec in layout_of(Net()).tensors]
    assert names == [
        "first.weight", "first.bias", "norm.weight", "norm.bias", "last.weight", "last.bias",
        "norm.running_mean", "norm.running_var",
    ]  # fmt: skip


def test_local_buffers_stay_and_keep_their_values() -> None:
    net = Net()
    assert "norm.running_mean" not in travelling(net, "local")
    FakeServer(arrays(net, "local")).run(participant(net, buffers="local"), rounds=2)
    assert net.norm.num_batches_tracked is not None
    assert int(net.norm.num_batches_tracked) == 8
    assert float(net.norm.running_mean.abs().sum()) > 0 if net.norm.running_mean is not None else False


def test_tied_parameters_travel_once() -> None:
    assert [spec.name for spec in layout_of(Tied()).tensors] == ["embed.weight"]


def test_updates_are_views_of_the_module() -> None:
    net = Net()
    weights = {name: to_array(tensor) for name, tensor in travelling(net, "average").items()}
    assert np.shares_memory(weights["first.weight"], net.first.weight.detach().numpy())


def test_bfloat16_modules() -> None:
    net = torch.nn.Linear(6, 3).to(torch.bfloat16)
    data = TensorDataset(INPUTS.to(torch.bfloat16), TARGETS)
    trainer = participant(net, loader=DataLoader(data, batch_size=8))
    start = arrays(net)
    assert start["weight"].dtype == np.uint16
    result = FakeServer(start).run(trainer)
    after = torch.from_numpy(result.model["weight"].view(np.int16).copy()).view(torch.bfloat16)
    torch.testing.assert_close(after, net.weight.detach(), rtol=0.01, atol=0.01)
    assert layout_of(net).tensors[0].dtype is Dtype.BFLOAT16


def test_the_seed_of_the_task_decides_the_order_of_the_data_and_dropout() -> None:
    def trained(seed: int) -> Any:
        net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(), torch.nn.Linear(8, 3))
        net.load_state_dict(state)
        found = participant(net, loader=DataLoader(DATA, batch_size=8, shuffle=True))
        weights = found.fit(model_of(arrays(net)), make_task(seed=seed)).weights
        assert weights is not None
        return weights["0.weight"].copy()

    state = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(), torch.nn.Linear(8, 3)).state_dict()
    first = trained(5)
    torch.rand(3)
    assert np.array_equal(trained(5), first)
    assert not np.array_equal(trained(6), first)


def test_generators_are_as_before_after_a_task() -> None:
    net = Net()
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    participant(net).fit(model_of(arrays(net)), make_task(seed=5))
    assert torch.equal(torch.rand(4), expected)


def test_seeding_can_be_left_out() -> None:
    net = Net()
    unseeded = participant(net, loader=DataLoader(DATA, batch_size=8, shuffle=True))
    unseeded.seeded = False
    torch.manual_seed(1)
    unseeded.fit(model_of(arrays(net)), make_task(seed=5))
    after = torch.rand(4)
    torch.manual_seed(1)
    assert not torch.equal(torch.rand(4), after)


def test_it_stops_between_batches_and_says_how_far_it_came() -> None:
    net = Net()
    task = make_task(settings=Settings({"epochs": 2}))

    class Stopping(TorchParticipant):
        def batch_size(self, batch: Any) -> int:
            task.control.stop("enough")
            return super().batch_size(batch)

    trainer = Stopping(net, DataLoader(DATA, batch_size=8), torch.nn.functional.cross_entropy, sgd)
    server = FakeServer(arrays(net))
    update = trainer.fit(server._model, task)
    assert (update.weight, update.partial) == (4, True)


def test_nothing_trained_has_no_weight() -> None:
    net = Net()
    task = make_task()
    task.control.stop("at once")
    update = participant(net).fit(FakeServer(arrays(net))._model, task)
    assert (update.weight, update.metrics) == (0, {})


def test_evaluation_only_where_there_is_data() -> None:
    net = Net()
    assert not participant(net).can_evaluate
    trainer = participant(net, evaluation=DataLoader(DATA, batch_size=5))
    evaluation = FakeServer(arrays(net)).evaluate(trainer)
    net.eval()
    with torch.no_grad():
        outputs = net(INPUTS)
    assert evaluation.weight == 32
    assert evaluation.metrics["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, TARGETS)), 1e-5)
    assert evaluation.metrics["accuracy"] == pytest.approx(float((outputs.argmax(1) == TARGETS).float().mean()))


def test_frozen_parameters_travel_unchanged() -> None:
    net = Net()
    net.first.requires_grad_(requires_grad=False)
    result = FakeServer(arrays(net)).run(participant(net), settings={"proximal_mu": 0.1})
    np.testing.assert_array_equal(result.model["first.weight"], net.first.weight.detach().numpy())


def test_a_model_of_another_shape_is_named() -> None:
    small, net = torch.nn.Linear(6, 2), torch.nn.Linear(6, 3)
    with pytest.raises(UsageError, match=r"'weight' is \[3, 6\] torch.float32 in the module, \[2, 6\] float32 in"):
        load_model(travelling(net, "average"), FakeServer(arrays(small))._model)
    with pytest.raises(UsageError, match=r"it lacks the tensors? 'first.weight'"):
        load_model(travelling(Net(), "average"), FakeServer(arrays(small))._model)


def test_rules_and_types_that_are_not_there_are_named() -> None:
    with pytest.raises(UsageError, match="buffers='mean'; allowed are 'average' and 'local'"):
        layout_of(Net(), "mean")  # type: ignore[arg-type]
    net = torch.nn.Module()
    net.register_parameter("w", torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64)))
    with pytest.raises(UsageError, match=r"'w' is torch.complex64; types that can be sent are float32"):
        layout_of(net)


def test_examples_are_counted_or_asked_for() -> None:
    assert participant(Net()).examples == 32
    assert participant(Net(), loader=[(INPUTS, TARGETS)], examples=5).examples == 5
    with pytest.raises(UsageError, match="examples="):
        participant(Net(), loader=iter([(INPUTS, TARGETS)]))


def test_initial_weights_are_a_safetensors_file(tmp_path: Path) -> None:
    net = Net()
    net.last.weight = torch.nn.Parameter(net.last.weight.detach().t().contiguous().t())
    assert not net.last.weight.is_contiguous()
    path = tmp_path / "initial.safetensors"
    save_initial(net, path)
    assert read_header(path)[0] == layout_of(net)
    other = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(safetensors.torch.load_file(path), strict=False)
    for name, array in arrays(other).items():
        np.testing.assert_array_equal(array, arrays(net)[name])
