"""DP-SGD in the client: Opacus' figures, exact clipping, Poisson samples, and charges before training."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from atoll.client import BudgetSpentError, TaskKind, TrainerError, UsageError
from atoll.client._privacy.keystream import Keystream
from atoll.client._privacy.ledger import Release, read_account
from atoll.client._privacy.sample_ledger import cost
from atoll.client._session.protection import Protection
from atoll.client._session.work import timed
from atoll.client.opacus import DpSgd, Limit, OpacusParticipant, PoissonSampler, PrivateSteps
from atoll.client.testing import FakeServer, make_task, model_of
from atoll.client.torch import TorchParticipant, to_array
from tests.patience import WAIT_S

pytestmark = pytest.mark.slow

SAMPLES = 64
EASY = Limit(1000.0, 1e-5)


def data(samples: int = SAMPLES) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, 4, generator=generator)
    return TensorDataset(inputs, (inputs.sum(dim=1) > 0).long())


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def sgd(parameters: Any, settings: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=settings.number("lr", 0.5))


def participant(privacy: DpSgd, samples: int = SAMPLES, batch: int = 16, **changes: Any) -> OpacusParticipant:
    fields: dict[str, Any] = {"module": network(), "loader": DataLoader(data(samples), batch_size=batch)}
    fields |= {"loss": nn.functional.cross_entropy, "optimiser": sgd}
    return OpacusParticipant(**(fields | changes), privacy=privacy)


def start(module: nn.Module) -> dict[str, Any]:
    return {name: to_array(parameter).copy() for name, parameter in module.named_parameters()}


def privacy(**changes: Any) -> DpSgd:
    fields: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "limit": EASY}
    return DpSgd(**(fields | changes))


# -- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta", "rdp", "prv"),
    [
        (1.0, 0.01, 1000, 1e-5, 2.1014, 1.8384),
        (1.1, 256 / 60000, 14062, 1e-5, 2.5966, 2.3917),
        (1.0, 0.1, 100, 1e-6, 8.9148, 8.0690),
        (4.0, 1.0, 100, 1e-5, 14.1322, 13.2173),
    ],
)
def test_published_values(noise: float, rate: float, steps: int, delta: float, rdp: float, prv: float) -> None:
    """Reference values of Opacus 1.6; in two entries, as two runs leave them."""
    half = Release("dp-sgd", noise_multiplier=noise, sample_rate=rate, count=steps // 2)
    whole = [half, replace(half, count=steps - steps // 2)]
    half_of_it = 2 * delta  # the filter keeps half for steps of other kinds
    assert cost(whole, half_of_it) == pytest.approx(rdp, abs=1e-4)
    assert prv * 0.99 - 0.01 < cost(whole, half_of_it, "prv") <= prv


def test_steps_of_different_kinds_are_added_up_by_rdp() -> None:
    """A limit on Renyi divergence holds for steps chosen on the way (Feldman & Zrnic 2021); for PRV none is known."""
    mixed = [Release("dp-sgd", noise_multiplier=noise, sample_rate=0.1, count=50) for noise in (1.0, 2.0)]
    assert cost(mixed, 1e-5, "prv") == cost(mixed, 1e-5, "rdp")
    assert cost(mixed[:1], 1e-5, "prv") < cost(mixed[:1], 1e-5, "rdp")


# -- the mechanism ----------------------------------------------------------------------------------------------------


class Still(Keystream):
    """No noise, and every sample taken."""

    def normals(self, start: int, size: int) -> Any:
        del start
        return np.zeros(size)

    def uniforms(self, start: int, size: int) -> Any:
        del start
        return np.zeros(size)


def one_step(
    monkeypatch: pytest.MonkeyPatch, wrong: int | None = None, norm: float = 0.05, micro_batch: int | None = None
) -> dict[str, Any]:
    """Return the change of the weights by one step without noise, with every sample and learning rate 1."""
    monkeypatch.setattr("atoll.client.opacus.Keystream", Still)
    module, samples = network(), data(8)
    if wrong is not None:
        samples.tensors[0][wrong] = math.nan
    before = start(module)
    loader, settings = DataLoader(samples, batch_size=8), privacy(max_grad_norm=norm, micro_batch=micro_batch)
    with PrivateSteps(module, torch.optim.SGD(module.parameters(), lr=1.0), loader, settings, 1) as steps:
        for inputs, targets in steps:
            torch.autograd.backward(nn.functional.cross_entropy(module(inputs), targets))
            steps.step()
    assert steps.made == 1
    return {name: before[name] - after for name, after in start(module).items()}


def clipped_sum(samples: TensorDataset, norm: float, without: int | None = None) -> dict[str, Any]:
    """A loop over single samples (Abadi et al. 2016, algorithm 1)."""
    module = network()
    total = {name: np.zeros(tuple(parameter.shape)) for name, parameter in module.named_parameters()}
    for index in range(len(samples)):
        if index == without:
            continue
        inputs, target = samples[index]
        module.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(module(inputs[None]), target[None]))
        gradients = {name: to_array(p.grad) for name, p in module.named_parameters() if p.grad is not None}
        length = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values()))
        for name, gradient in gradients.items():
            total[name] += gradient * min(1.0, norm / length)
    return total


@pytest.mark.parametrize("micro_batch", [None, 8, 3, 1])
def test_each_samples_gradient_is_clipped(monkeypatch: pytest.MonkeyPatch, micro_batch: int | None) -> None:
    """This holds however few gradients are held at once."""
    taken, expected = one_step(monkeypatch, micro_batch=micro_batch), clipped_sum(data(8), 0.05)
    for name, values in taken.items():
        np.testing.assert_allclose(values, expected[name] / 8, atol=1e-5)


def test_a_sample_that_is_not_finite_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN would pass min(1, C / norm), and show in every weight."""
    taken, expected = one_step(monkeypatch, wrong=3), clipped_sum(data(8), 0.05, without=3)
    for name, values in taken.items():
        np.testing.assert_allclose(values, expected[name] / 8, atol=1e-5)


def test_noise_has_the_stated_size_and_is_divided_by_the_expected_batch() -> None:
    """Steps of nothing but noise: no sample is ever taken."""
    module = nn.Linear(100, 200)
    before = start(module)
    samples = TensorDataset(torch.zeros(1000, 100), torch.zeros(1000).long())
    loader, settings = DataLoader(samples, batch_size=20), privacy(noise_multiplier=3.0, max_grad_norm=0.5)
    optimiser = torch.optim.SGD(module.parameters(), lr=1.0)
    with PrivateSteps(module, optimiser, loader, settings, 2) as steps:
        steps._batches = [None, None]  # type: ignore[assignment]  # two empty samples
        steps._sampler.ends.extend([True, True])
        assert [(batch, steps.step()) for batch in steps] == [(None, None)] * 2
    moved = np.concatenate([(start(module)[name] - before[name]).ravel() for name in before])
    drawn = moved / (3.0 * 0.5 / 20 * math.sqrt(2))
    assert stats.kstest(drawn, "norm").pvalue > 1e-8  # of noise that is drawn again each time
    assert steps.made == 2


def test_samples_are_poisson() -> None:
    """Each index is drawn independently with the same probability; batch sizes are binomial."""
    batches = list(PoissonSampler(50, 0.1, 4000, Keystream(bytes(32))))
    sizes = np.array([len(batch) for batch in batches])
    assert min(sizes) == 0  # chance 0.9^50 = 0.5 % each
    expected = 4000 * stats.binom.pmf(np.arange(0, 13), 50, 0.1)
    counts = np.bincount(sizes, minlength=13)[:12]
    assert stats.chisquare([*counts, 4000 - counts.sum()], [*expected[:12], 4000 - expected[:12].sum()]).pvalue > 1e-3
    each = np.bincount(np.concatenate([np.array(batch, int) for batch in batches]), minlength=50)
    assert stats.chisquare(each).pvalue > 1e-3
    assert all(len(set(batch)) == len(batch) for batch in batches)


def test_a_seed_of_torchs_decides_nothing() -> None:
    """``torch.manual_seed`` is in every training script, so noise that depends on it would be known."""
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        module = network()
        torch.manual_seed(0)
        result = FakeServer(start(module)).run(participant(privacy(), module=module))
        results.append(result.model["0.weight"])
    assert np.abs(results[0] - results[1]).max() > 1e-3


# -- the participant --------------------------------------------------------------------------------------------------


def test_it_learns_and_says_nothing_but_weights(tmp_path: Path) -> None:
    module = network()
    member = participant(privacy(noise_multiplier=0.5), samples=2000, batch=100, module=module)
    result = FakeServer(start(module), state=tmp_path).run(member, rounds=3, settings={"epochs": 2})
    judge = TorchParticipant(network(), DataLoader(data(500), batch_size=500), nn.functional.cross_entropy, sgd)
    judge.evaluation = judge.loader
    assert judge.evaluate(result.model, make_task()).metrics["accuracy"] > 0.85
    report = result.rounds[-1].reports[0]
    assert not report.metrics
    assert report.weight == 2000
    assert not report.partial
    account = member.ledger.account()
    assert account.releases == (Release("dp-sgd", noise_multiplier=0.5, sample_rate=0.05, count=120),)
    assert account.epsilon == cost(account.releases, 1e-5)
    assert (tmp_path / "0" / "privacy" / "samples-data.json").exists()


class Careless(TensorDataset):
    """Its errors quote a sample."""

    def __getitem__(self, index: Any) -> Any:
        raise ValueError("could not convert string to float: 'Jane Doe, HIV+'")


def test_an_error_that_quotes_a_sample_stays_here(tmp_path: Path) -> None:
    module = network()
    member = participant(privacy(), module=module, loader=DataLoader(Careless(*data().tensors), batch_size=16))
    member.prepare(tmp_path)
    with pytest.raises(TrainerError, match="Jane Doe") as failed:
        timed(lambda: member.fit(model_of(start(module)), make_task(max_weight=SAMPLES)), "fit")
    assert (
        Protection().text_for_server(failed.value) == "fit raised ValueError (its text stays in the participant's log)"
    )


def test_a_round_that_would_overspend_is_declined_before_training(tmp_path: Path) -> None:
    module = network()
    one = cost([Release("dp-sgd", noise_multiplier=1.0, sample_rate=0.25, count=4)], 1e-5, "prv")
    limited = privacy(limit=Limit(one * 1.5, 1e-5))
    server = FakeServer(start(module), state=tmp_path)
    first = server.run(participant(limited, module=module), rounds=3)
    assert [len(played.reports) for played in first.rounds] == [1, 1, 0]  # composition is better than addition
    assert "are spent on each sample here, and this round would make it" in first.rounds[2].declined[0][1]
    again = server.run(participant(limited, module=network()), settings={"epochs": 1})
    assert again.rounds[0].declined
    looser = participant(privacy(), module=network())
    assert server.run(looser).rounds[0].reports
    assert looser.ledger.account().rounds == 3


def test_the_servers_settings_decide_steps_but_not_the_budget(tmp_path: Path) -> None:
    module = network()
    member = participant(privacy(limit=Limit(20.0, 1e-5)), module=module)
    played = FakeServer(start(module), state=tmp_path).run(member, settings={"epochs": 10_000}).rounds[0]
    assert "epsilon 20" in played.declined[0][1]
    assert member.ledger.account().rounds == 0


def test_evaluations_cost_nothing() -> None:
    member = participant(privacy(limit=Limit(0.01, 1e-5)))
    assert member.objection(make_task(kind=TaskKind.EVALUATE)) is None


def test_steps_that_time_did_not_allow_are_taken_off(tmp_path: Path) -> None:
    module = network()
    member = participant(privacy(), module=module)
    member.prepare(tmp_path)
    task = make_task(max_weight=SAMPLES)
    made: list[int] = []

    def stop_after_two(parameters: Any, settings: Any) -> torch.optim.Optimizer:
        optimiser = sgd(parameters, settings)

        def count(*_: Any) -> None:
            made.append(1)
            if len(made) == 2:
                task.control.stop("enough")

        optimiser.register_step_post_hook(count)
        return optimiser

    member.optimiser = stop_after_two
    update = member.fit(model_of(start(module)), task)
    assert (update.weight, update.partial) == (SAMPLES // 2, True)
    assert [release.count for release in member.ledger.account().releases] == [2]


def test_a_budget_that_was_spent_meanwhile_is_not_overspent(tmp_path: Path) -> None:
    """Two clients share a data set: both accept the round; the second finds the budget spent, and does not train."""
    shared = privacy(limit=Limit(13.0, 1e-5), ledger=tmp_path / "shared.json")
    first, second = participant(shared), participant(shared)
    task = make_task(max_weight=SAMPLES)
    assert first.objection(task) is second.objection(task) is None
    model = model_of(start(first.module))
    while first.objection(task) is None:
        first.fit(model, task)
    before = start(second.module)
    with pytest.raises(BudgetSpentError):
        second.fit(model, task)
    for name, values in start(second.module).items():
        np.testing.assert_array_equal(values, before[name])
    account = read_account(tmp_path / "shared.json")
    assert account is not None
    assert 6.5 < account.epsilon <= 13.0


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from atoll.client.testing import FakeServer
from tests.client import test_opacus as here

def killer(parameters, settings):
    optimiser = here.sgd(parameters, settings)
    steps = []
    def kill(*_):
        steps.append(1)
        if len(steps) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    optimiser.register_step_post_hook(kill)
    return optimiser

member = here.participant(here.privacy(), optimiser=killer)
FakeServer(here.start(member.module), state=Path(sys.argv[1])).run(member)
"""


def test_a_round_that_is_killed_in_training_is_charged_whole(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment, check=False, timeout=WAIT_S)
    assert done.returncode == -signal.SIGKILL
    account = read_account(tmp_path / "0" / "privacy" / "samples-data.json")
    assert account is not None
    assert [release.count for release in account.releases] == [4]


def test_proximal_mu_pulls_after_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.client.opacus.Keystream", Still)
    far = {}
    for mu in (0.0, 5.0):
        module = network()
        result = FakeServer(start(module)).run(
            participant(privacy(), module=module, batch=SAMPLES), settings={"proximal_mu": mu, "lr": 0.1, "epochs": 20}
        )
        far[mu] = float(np.linalg.norm(result.model["0.weight"] - start(network())["0.weight"]))
    assert far[5.0] < 0.5 * far[0.0]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"module": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))}, "cannot be trained with DP-SGD.*BatchNorm"),
        ({"loader": DataLoader(Stream(), batch_size=4)}, "no length"),
        ({"loader": DataLoader(data(), batch_sampler=[[0, 1]])}, "no batch_size"),
    ],
)
def test_what_cannot_be_private_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        participant(privacy(), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.nan},
        {"max_grad_norm": 0.0},
        {"max_grad_norm": math.inf},
        {"limit": Limit(1.0, 0.0)},
        {"data": "../elsewhere"},
        {"data": ""},
        {"accountant": "gdp"},
        {"micro_batch": 0},
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        privacy(**changes)


@pytest.mark.parametrize("name", ["noise_multiplier", "max_grad_norm"])
@pytest.mark.parametrize("value", [math.inf, math.nan, 0.0, -1.0])
def test_a_value_that_cannot_be_is_named(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"^{name} = {value}; allowed is anything finite above 0$"):
        privacy(**{name: value})


def test_without_a_place_for_the_ledger_nothing_is_trained() -> None:
    with pytest.raises(UsageError, match="there is no ledger yet"):
        participant(privacy()).objection(make_task())


@pytest.mark.parametrize("workers", [0, 2])
def test_steps_come_in_micro_batches(workers: int) -> None:
    module = network()
    loader = DataLoader(data(40), batch_size=20, num_workers=workers)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    with PrivateSteps(module, optimiser, loader, privacy(micro_batch=8), 5) as steps:
        sizes: list[list[int]] = [[]]
        for inputs, targets in steps:
            torch.autograd.backward(nn.functional.cross_entropy(module(inputs), targets))
            sizes[-1].append(len(inputs))
            steps.step()
            if steps.made == len(sizes):
                sizes.append([])
    assert steps.made == 5
    assert all(set(step[:-1]) <= {8} and 0 < step[-1] <= 8 for step in sizes[:5])
    assert 12 < np.mean([sum(step) for step in sizes[:5]]) < 28


class Items(Dataset[Any]):
    """Few samples, so that most batches are empty."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)), index % 2


def test_empty_batches_are_steps_of_noise() -> None:
    module = network()
    loader = DataLoader(Items(), batch_size=1)
    settings = privacy()
    with PrivateSteps(module, torch.optim.SGD(module.parameters(), lr=0.1), loader, settings, 60) as steps:
        seen = []
        for batch in steps:
            seen.append(batch is None)
            if batch is not None:
                torch.autograd.backward(nn.functional.cross_entropy(module(batch[0]), batch[1]))
            steps.step()
    assert steps.made == len(seen) == 60
    assert 3 < sum(seen) < 45  # 0.9^10 = 35 % each
