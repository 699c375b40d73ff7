"""Torch participants that keep tensors: what is sent, what is kept, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll.client import Settings, UsageError
from atoll.client.testing import FakeServer, make_task, model_of
from atoll.client.torch import layout_of, save_initial, to_array
from atoll.client.torch_personal import FILE, PersonalTorchParticipant
from atoll.formats.arrays import load, save
from atoll.operator import Cohort, Evaluation, Job
from atoll.simulation import Federation
from tests.client.test_torch import DATA, Net, sgd

LOCAL = ("last.*", "norm.running_*")


def net_of(seed: int) -> Net:
    torch.manual_seed(seed)
    return Net()


def site(seed: int = 0, local: tuple[str, ...] = LOCAL, **options: Any) -> PersonalTorchParticipant:
    loader = torch.utils.data.DataLoader(DATA, batch_size=8)
    loss = torch.nn.functional.cross_entropy
    return PersonalTorchParticipant(net_of(seed), loader, loss, sgd, local=local, evaluation=loader, **options)


def initial(path: Path) -> dict[str, Any]:
    save_initial(net_of(9), path / "initial.safetensors", local=LOCAL)
    return load(path / "initial.safetensors")


def own(participant: PersonalTorchParticipant) -> dict[str, Any]:
    return {name: to_array(tensor).copy() for name, tensor in participant.personal().items()}


def test_the_global_model_lacks_what_stays(tmp_path: Path) -> None:
    names = {"first.weight", "first.bias", "norm.weight", "norm.bias"}
    assert set(initial(tmp_path)) == names == {tensor.name for tensor in layout_of(net_of(0), local=LOCAL).tensors}
    assert set(site().personal()) == {"last.weight", "last.bias", "norm.running_mean", "norm.running_var"}


def test_what_stays_is_trained_and_kept_and_the_rest_is_averaged(tmp_path: Path) -> None:
    first, second = site(0), site(1)
    before = own(first)
    played = FakeServer(initial(tmp_path), state=tmp_path).run(first, second, rounds=2)
    assert all((own(first)[name] != before[name]).any() for name in before)
    assert any((own(first)[name] != own(second)[name]).any() for name in before)
    kept = load(tmp_path / "0" / FILE)
    np.testing.assert_equal(dict(kept), own(first))
    assert set(played.model) == set(initial(tmp_path))


def test_after_a_restart_it_goes_on_with_what_was_kept(tmp_path: Path) -> None:
    model = initial(tmp_path)
    straight, alone = site(0), tmp_path / "alone"
    alone.mkdir()
    FakeServer(model, state=alone).run(straight, rounds=2)
    server = FakeServer(model, state=tmp_path)
    server.run(site(0))
    again = site(5)  # other initial weights, as after a restart
    server.run(again)
    np.testing.assert_equal(own(again), own(straight))


def test_an_evaluation_uses_what_was_kept(tmp_path: Path) -> None:
    trained, model = site(0), initial(tmp_path)
    played = FakeServer(model, state=tmp_path).run(trained, rounds=3)
    again = site(5)
    again.prepare(tmp_path / "0")
    task = make_task()
    assert again.evaluate(played.model, task).metrics == trained.evaluate(played.model, task).metrics


def test_a_proximal_term_pulls_at_the_shared_tensors_alone(tmp_path: Path) -> None:
    update = site().fit(model_of(initial(tmp_path)), make_task(settings=Settings({"proximal_mu": 0.5})))
    assert set(update.tensors) == set(initial(tmp_path))


@pytest.mark.parametrize(
    ("local", "problem"),
    [(("head.*",), "no tensor is named 'head.*'; there are: first.weight"), (("*",), "nothing would be trained")],
)
def test_names_that_match_nothing_or_everything_are_refused(local: tuple[str, ...], problem: str) -> None:
    with pytest.raises(UsageError, match=problem.replace("*", r"\*")):
        site(local=local)


def test_a_global_model_of_another_split_is_refused(tmp_path: Path) -> None:
    save_initial(net_of(0), tmp_path / "all.safetensors")
    with pytest.raises(UsageError, match="last"):
        site().fit(model_of(load(tmp_path / "all.safetensors")), make_task())


@pytest.mark.parametrize("content", [None, {"last.weight": np.zeros((2, 2), np.float32)}])
def test_a_file_of_another_module_is_refused(tmp_path: Path, content: Any) -> None:
    participant = site()
    participant.prepare(tmp_path)
    if content is None:
        (tmp_path / FILE).write_bytes(b"damaged")
    else:
        save(tmp_path / FILE, content)
    with pytest.raises(UsageError, match="remove it to begin anew"):
        participant.fit(model_of(initial(tmp_path)), make_task())


def test_a_file_of_other_element_types_is_refused(tmp_path: Path) -> None:
    """The bits of bfloat16 would be read as numbers up to 65,535."""
    participant = site()
    participant.prepare(tmp_path)
    save(tmp_path / FILE, {name: np.full(array.shape, 16_256, np.uint16) for name, array in own(participant).items()})
    with pytest.raises(UsageError, match="other element types"):
        participant.fit(model_of(initial(tmp_path)), make_task())


def test_what_diverged_or_was_broken_off_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    participant, model = site(), model_of(initial(tmp_path))
    participant.prepare(tmp_path)
    before = own(participant)
    mean_loss = participant.loss
    calls = iter(range(2))

    def failing(outputs: Any, targets: Any) -> torch.Tensor:
        if next(calls, None) is None:
            raise RuntimeError("out of memory")
        return mean_loss(outputs, targets)

    participant.loss = failing
    with pytest.raises(RuntimeError, match="memory"):
        participant.fit(model, make_task())
    participant.loss = lambda outputs, targets: mean_loss(outputs, targets) * float("nan")
    participant.fit(model, make_task())
    assert "'last.weight' is not finite" in caplog.text
    participant.loss = mean_loss
    participant.evaluate(model, make_task())
    np.testing.assert_equal(own(participant), before)


def test_a_simulation_keeps_the_tensors_of_each_participant(tmp_path: Path) -> None:
    model = initial(tmp_path)
    job = Job(rounds=3, cohort=Cohort(size=2), evaluation=Evaluation(before_training=True))
    result = Federation(site, 2).run(job, initial=model, strict=True)
    assert set(result.model) == set(model)
    deployed = FakeServer(model, state=tmp_path).run(site(0), site(1), rounds=3)
    for name, tensor in result.model.items():
        np.testing.assert_allclose(tensor, deployed.model[name], atol=1e-5)
