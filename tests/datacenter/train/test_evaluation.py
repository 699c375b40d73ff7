"""Loss on held-out data: the same in every layout and in a plain loop, and without an effect on training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atoll.datacenter.data.held_out import open_held_out
from atoll.datacenter.errors import DataError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import join_world
from atoll.datacenter.models import ModelSpec, spec_of
from atoll.datacenter.parallel.initial import fill
from atoll.datacenter.parallel.tensor import tie
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import open_trainer
from tests.datacenter.ranks import RankError, run_ranks
from tests.datacenter.train.test_trainer import JOB, records
from tests.datacenter.training import method, named_whole
from tests.patience import WAIT_S

HELD_OUT = {"every_steps": 2, "sequences": 6}
"""Six sequences in batches of four: half of the second batch is filled up."""
MODEL = {"layers": 4, "dim": 32, "heads": 2}
STEPS = {"name": "bytes", "steps": 3, "seed": 3}
TEXT = "a line of text that is held out\n"


def job(**sections: dict[str, Any]) -> dict[str, Any]:
    """A short job; sections replace the job's, key by key."""
    found = {**JOB, "job": STEPS, "model": MODEL}
    return {**found, **{name: {**found.get(name, {}), **keys} for name, keys in sections.items()}}


def trained(folder: str, sections: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
    """Return parameters after the last step, and the state of the random generator."""
    with (
        join_world(WAIT_S) as world,
        open_trainer(SiloJob.model_validate(sections), Path(folder), world, Unwatched(), console=False) as trainer,
    ):
        torch.manual_seed(1)
        trainer.run()
        return named_whole(trainer.step.passes.parts), torch.get_rng_state()


def both(folder: str, sections: dict[str, Any]) -> list[str]:
    """Train with and without evaluation; return what differs."""
    with_it, state = trained(folder, {**sections, "evaluation": HELD_OUT})
    without, wanted = trained(f"{folder}/without", sections)
    differs = [name for name, value in with_it.items() if not torch.equal(value, without[name])]
    return differs if torch.equal(state, wanted) else [*differs, "random generator"]


def evaluations(folder: Path) -> list[dict[str, Any]]:
    return [line["evaluation"] for line in records(folder) if "evaluation" in line]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Evaluations of one process."""
    folder = tmp_path_factory.mktemp("alone")
    assert run_ranks(both, 1, str(folder), job()) == [[]]
    return evaluations(folder)


def test_it_comes_before_the_first_step_every_so_often_and_after_the_last(alone: list[dict[str, Any]]) -> None:
    assert [one["step"] for one in alone] == [0, 2, 3]
    assert alone[2]["loss"] < alone[0]["loss"]
    assert alone[0]["perplexity"] == pytest.approx(math.exp(alone[0]["loss"]))


def whole_model(settings: SiloJob, spec: ModelSpec) -> nn.Module:
    with torch.device("meta"):
        module = spec.build()
    module.to_empty(device="cpu")
    tie(module, spec)
    fill(module, spec.initial, settings.job.seed)
    return module


def test_it_is_the_loss_of_a_plain_loop(alone: list[dict[str, Any]], tmp_path: Path) -> None:
    settings = SiloJob.model_validate(job(evaluation=HELD_OUT))
    held_out, spec = open_held_out(settings, tmp_path), spec_of(settings.model)
    assert held_out is not None
    assert (held_out.count, held_out.batches) == (6, 2)
    model = whole_model(settings, spec)
    total, counted = 0.0, 0
    with torch.no_grad():
        for batch in held_out.shares(0, 1):
            total += float(spec.loss(model(batch.tokens), batch.labels))
            counted += batch.counted
    assert counted == alone[0]["tokens"] <= 6 * 32
    assert alone[0]["loss"] == pytest.approx(total / counted, abs=1e-6)


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {"data_parallel": method("ddp")}, id="ddp-2", marks=pytest.mark.every_layout),
        pytest.param(2, {"data_parallel": method("zero2")}, id="zero2-2", marks=pytest.mark.every_layout),
        pytest.param(2, {"data_parallel": method("zero3")}, id="zero3-2"),
        pytest.param(2, {"mesh": {"tp": 2}}, id="tp-2", marks=pytest.mark.every_layout),
        pytest.param(
            2,
            {"mesh": {"cp": 2}, "context_parallel": {"method": "ring"}, "batch": {"micro_batch": 4}},
            id="ring-2",
        ),
        pytest.param(
            2, {"mesh": {"pp": 2}, "pipeline": {"schedule": "1f1b"}}, id="1f1b-2", marks=pytest.mark.every_layout
        ),
        pytest.param(
            2, {"mesh": {"pp": 2}, "pipeline": {"schedule": "zbv"}, "data_parallel": method("zero2")}, id="zbv-2"
        ),
        pytest.param(
            4,
            {"mesh": {"pp": 2, "tp": 2}, "pipeline": {"schedule": "interleaved", "stages_per_rank": 2}},
            id="interleaved-2-tp-2",
            marks=pytest.mark.every_layout,
        ),
        pytest.param(
            4,
            {"mesh": {"pp": 2}, "data_parallel": method("zero3"), "memory": {"loss_chunk_tokens": 8}},
            id="pp-2-zero3-2-chunks",
            marks=pytest.mark.every_layout,
        ),
    ],
)
def test_every_layout_finds_the_loss_of_one_process_and_trains_to_the_same_bits(
    ranks: int, sections: dict[str, Any], alone: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert run_ranks(both, ranks, str(tmp_path), job(**sections)) == [[]] * ranks
    found = evaluations(tmp_path)
    assert [(one["step"], one["tokens"]) for one in found] == [(one["step"], one["tokens"]) for one in alone]
    assert [one["loss"] for one in found] == pytest.approx([one["loss"] for one in alone], abs=1e-5)


def test_dropout_is_off_and_draws_nothing(tmp_path: Path) -> None:
    sections = {**job(), "model": {"kind": "tests.datacenter.train.test_evaluation:with_dropout"}}
    assert run_ranks(both, 1, str(tmp_path), sections) == [[]]


def with_dropout(_settings: object) -> torch.nn.Module:
    """``model.kind``: a plain module."""
    return torch.nn.Sequential(torch.nn.Embedding(256, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 256))


def test_a_private_job_is_evaluated(tmp_path: Path) -> None:
    sections = {
        **JOB,
        "job": STEPS,
        "model": {"kind": "vision", "vocab": 10, "layers": 1, "dim": 32, "heads": 4},
        "data": {"source": "digits"},
        "batch": {"global_batch": 100, "micro_batch": 25},
        "privacy": {"epsilon": 4.0, "delta": 1e-5, "accountant": "rdp"},
        "evaluation": {"every_steps": 2, "sequences": 150},
    }
    run_ranks(trained, 2, str(tmp_path), sections)
    assert [(one["step"], one["tokens"]) for one in evaluations(tmp_path)] == [(0, 150), (2, 150), (3, 150)]


def opened(folder: Path, data: dict[str, Any], **evaluation: Any) -> Any:
    sections = job(data=data, evaluation={"every_steps": 1, **evaluation})
    return open_held_out(SiloJob.model_validate(sections), folder)


def test_text_of_its_own_is_read_from_the_path(tmp_path: Path) -> None:
    (tmp_path / "held.txt").write_text(TEXT * 10)
    found = opened(tmp_path, {"source": "text", "path": "train.txt"}, path="held.txt")
    (batch, *_) = found.shares(0, 1)
    assert bytes(batch.tokens[0].tolist()).decode()[:4] in TEXT * 2
    assert found.count == math.ceil((len(TEXT) * 10 - 1) / 32)


@pytest.mark.parametrize(
    ("data", "evaluation", "said"),
    [
        ({"source": "text", "path": "train.txt"}, {}, r'evaluation\.path is missing: data\.source = "text"'),
        ({"source": "stdlib"}, {"path": "held.txt"}, r'evaluation\.path = "held\.txt" is not used'),
        ({"source": "text", "path": "train.txt"}, {"path": "none.txt"}, "none.txt: no such file"),
        ({"source": "tokens", "path": "train.tokens"}, {"path": "held.txt"}, "held.txt"),
    ],
)
def test_missing_held_out_data_is_refused(
    data: dict[str, Any], evaluation: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "held.txt").write_text(TEXT)
    with pytest.raises(DataError, match=said):
        opened(tmp_path, data, **evaluation)


def test_too_much_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.datacenter.data.held_out.MAX_TEXT_BYTES", 10)
    (tmp_path / "held.txt").write_text(TEXT)
    with pytest.raises(DataError, match="has 32 bytes of text; at most 10"):
        opened(tmp_path, {"source": "text", "path": "train.txt"}, path="held.txt")


def test_shares_of_any_number_of_ranks_are_the_same_rows(tmp_path: Path) -> None:
    held_out = opened(tmp_path, {"source": "stdlib"}, sequences=6)
    whole = [batch.labels for batch in held_out.shares(0, 1)]
    for ranks in (2, 3):
        parts = [list(held_out.shares(rank, ranks)) for rank in range(ranks)]
        for number, labels in enumerate(whole):
            assert torch.equal(torch.cat([part[number].labels for part in parts]), labels)


def test_it_is_refused_beside_asynchronous_training(tmp_path: Path) -> None:
    sections = job(asynchrony={"method": "hogwild"}, evaluation=HELD_OUT)
    with pytest.raises(RankError, match=r"\[evaluation\] is not available with \[asynchrony\]"):
        run_ranks(trained, 1, str(tmp_path), sections)
