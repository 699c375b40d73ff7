"""No step waits for the device: figures are read after the next step is queued, and are the same as with waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import join_world
from atoll.datacenter.train.launched import StepResult
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.step import Step
from atoll.datacenter.train.trainer import Trainer, open_trainer
from tests.datacenter.ranks import run_ranks
from tests.datacenter.train.test_trainer import JOB
from tests.datacenter.training import named_whole
from tests.patience import WAIT_S

_WAITS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__")
"""Methods of a tensor that wait until a GPU has computed it."""
STEADY: dict[str, Any] = {**JOB, "job": {**JOB["job"], "steps": 8}, "metrics": {"every_steps": 8}}
CHUNKED: dict[str, Any] = {"memory": {"loss_chunk_tokens": 8}, "data_parallel": {"method": "zero3"}}
EXPERTS: dict[str, Any] = {
    "model": {**JOB["model"], "moe": {"experts": 4, "top_k": 2, "expert_dim": 16, "balance": "bias"}}
}


@contextmanager
def noted(events: list[str]) -> Iterator[None]:
    """Append ``wait`` for each wait for the device and ``queued`` for each step that has been queued."""
    launch = Step.launch

    def queued(self: Step, *given: Any) -> Any:
        made = launch(self, *given)
        events.append("queued")
        return made

    def waiting(original: Callable[..., Any], self: Tensor, *given: Any, **named: Any) -> Any:
        events.append("wait")
        return original(self, *given, **named)

    with patch.object(Step, "launch", queued):
        patches = [patch.object(Tensor, name, _method(waiting, getattr(Tensor, name))) for name in _WAITS]
        for one in patches:
            one.start()
        try:
            yield
        finally:
            for one in patches:
                one.stop()


def _method(waiting: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Tensor, *given: Any, **named: Any) -> Any:
        return waiting(original, self, *given, **named)

    return method


def waits(folder: str, sections: dict[str, Any]) -> list[str]:
    """Events of a job's first seven steps; the eighth is recorded."""
    events: list[str] = []
    with opened(folder, sections) as trainer, noted(events):
        for _ in range(7):
            trainer.queue()
    return events


@contextmanager
def opened(folder: str, sections: dict[str, Any]) -> Iterator[Trainer]:
    job = SiloJob.model_validate(sections)
    with join_world(WAIT_S) as world, open_trainer(job, Path(folder), world, Unwatched(), console=False) as trainer:
        yield trainer


@pytest.mark.parametrize("sections", [{}, CHUNKED], ids=["plain", "chunked loss, zero3"])
def test_a_step_waits_for_the_one_before_it_only_after_it_was_queued(tmp_path: Path, sections: dict[str, Any]) -> None:
    (events,) = run_ranks(waits, 1, str(tmp_path), {**STEADY, **sections})
    assert events == ["queued", *(["queued", "wait"] * 6)]


def outcome(folder: str, sections: dict[str, Any], *, at_once: bool) -> dict[str, Any]:
    """Figures of all steps and the digest of the weights at the end."""
    results: list[dict[str, Any]] = []
    with opened(folder, sections) as trainer:
        count = trainer._count

        def counted(result: StepResult) -> None:
            results.append(asdict(result))
            count(result)

        with patch.object(trainer, "_count", counted):
            if at_once:
                for _ in range(trainer.job.job.steps):
                    trainer.advance()
            else:
                trainer.run()
        digest = sha256()
        for name, value in named_whole(trainer.step.passes.parts).items():
            digest.update(name.encode() + value.numpy().tobytes())
        return {"results": results, "digest": digest.hexdigest(), "tokens": trainer.state.tokens}


def outcomes(folder: str, sections: dict[str, Any]) -> list[dict[str, Any]]:
    """Outcomes without waiting and with it."""
    return [outcome(folder, sections, at_once=at_once) for at_once in (False, True)]


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(1, {}, id="1-plain"),
        pytest.param(2, {}, id="2-plain", marks=pytest.mark.every_case),
        pytest.param(1, CHUNKED, id="1-chunked loss, zero3", marks=pytest.mark.every_case),
        pytest.param(2, CHUNKED, id="2-chunked loss, zero3"),
        pytest.param(1, EXPERTS, id="1-experts", marks=pytest.mark.every_case),
        pytest.param(2, EXPERTS, id="2-experts"),
    ],
)
def test_figures_and_weights_are_those_of_waiting_to_the_bit(
    tmp_path: Path, ranks: int, sections: dict[str, Any]
) -> None:
    for queued, waited in run_ranks(outcomes, ranks, str(tmp_path), {**STEADY, **sections}):
        assert len(queued["results"]) == 8
        assert queued == waited


def diverged(folder: str, sections: dict[str, Any]) -> str:
    """The error of a job whose weights become infinite before its fourth step."""
    with opened(folder, sections) as trainer:
        for _ in range(3):
            trainer.queue()
        with torch.no_grad():
            next(trainer.step.passes.parts[0].parameters()).fill_(float("inf"))
        with pytest.raises(TrainingError) as error:
            trainer.run()
        return str(error.value)


def test_nothing_is_kept_of_a_step_that_is_not_finite(tmp_path: Path) -> None:
    """Its error comes one step later, before the checkpoint that would have kept its weights."""
    sections = {**STEADY, "checkpoint": {"folder": "kept", "every_steps": 5}}
    (error,) = run_ranks(diverged, 1, str(tmp_path), sections)
    assert error.startswith("step 3: loss ")
    assert "not finite; lower optimiser.lr" in error
    assert not list((tmp_path / "kept").glob("step*"))


def stopped_before_the_update(folder: str, sections: dict[str, Any]) -> bool:
    with opened(folder, sections) as trainer:
        parameter = next(trainer.step.passes.parts[0].parameters())
        with torch.no_grad():
            parameter.fill_(float("inf"))
        before = named_whole(trainer.step.passes.parts)
        with pytest.raises(TrainingError):
            trainer.advance()
        after = named_whole(trainer.step.passes.parts)
        return all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_step_that_is_waited_for_leaves_the_weights_if_it_is_not_finite(tmp_path: Path) -> None:
    assert run_ranks(stopped_before_the_update, 1, str(tmp_path), STEADY) == [True]
