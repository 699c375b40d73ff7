"""A model of ``transformers`` trains from a job file, continues and is exported; a damaged checkpoint is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.cli import silo
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob, load_job
from atoll.datacenter.job.model import ModelSection
from atoll.datacenter.models import spec_of
from tests.datacenter.ranks import run_ranks
from tests.datacenter.train.test_trainer import run

os.environ["HF_HUB_OFFLINE"] = "1"
SIZES = {"vocab_size": 256, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
JOB = """
[job]
name = "gpt2"
steps = 2
[model]
kind = "transformers"
weights = "base"
[batch]
sequence = 16
global_batch = 2
micro_batch = 1
[checkpoint]
folder = "checkpoints"
every_steps = 100
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(**SIZES)).save_pretrained(tmp_path / "base")
    (tmp_path / "job.toml").write_text(JOB, encoding="utf-8")
    return tmp_path / "job.toml"


def tensors(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def exported(file: Path, *words: str) -> dict[str, Tensor]:
    out = file.parent / "out"
    done = CliRunner().invoke(silo, ["export", str(file), "--out", str(out), *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return tensors(out)


@pytest.mark.ranks
def test_a_job_file_trains_it_on_two_ranks_continues_and_is_exported(file: Path) -> None:
    job = load_job(file)
    run_ranks(run, 2, str(file.parent), job.model_dump(exclude_unset=True), -1)
    two = exported(file)
    longer = job.model_copy(update={"job": job.job.model_copy(update={"steps": 3})})
    run_ranks(run, 2, str(file.parent), longer.model_dump(exclude_unset=True), -1)
    three, again = exported(file), exported(file, "--step", "2")
    base = tensors(file.parent / "base")
    assert base.keys() == two.keys() == three.keys()
    for name, value in base.items():
        assert torch.equal(two[name], again[name])
        assert not torch.equal(two[name], value), name
        assert not torch.equal(two[name], three[name]), name
    assert json.loads((file.parent / "out" / "config.json").read_text())["use_cache"] is True


@pytest.mark.parametrize("lora", ["", '[model.lora]\nrank = 2\ntargets = ["score"]'], ids=["whole", "adapters"])
def test_a_federations_model_starts_from_the_checkpoint_and_is_exported(file: Path, lora: str) -> None:
    if lora:
        file.write_text(JOB.replace("[batch]", f"{lora}\n[batch]"), encoding="utf-8")
        _with_head(file.parent / "base")
    begun = tensors(file.parent / "base")
    initial = file.parent / "initial.safetensors"
    done = CliRunner().invoke(silo, ["initial", str(file), "--out", str(initial)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    sent = load_file(initial)
    if lora:
        sent["score.lora_b"] += 1.0
    else:
        assert sent.keys() == begun.keys()
        assert all(torch.equal(sent[name], begun[name]) for name in begun)
        sent = {name: value + 1.0 for name, value in sent.items()}
    save_file(sent, initial)
    found = exported(file, "--model", str(initial))
    added = {"score.weight": 8.0 * sent["score.lora_b"] @ sent["score.lora_a"]} if lora else dict.fromkeys(begun, 1.0)
    assert found.keys() == begun.keys()
    for name, value in begun.items():
        torch.testing.assert_close(found[name], value + added.get(name, 0.0))


def _with_head(folder: Path) -> None:
    """Give the checkpoint a linear layer of its own: GPT-2 has none in its blocks."""
    from transformers import GPT2ForSequenceClassification  # noqa: PLC0415  # for one case

    GPT2ForSequenceClassification(GPT2Config(**SIZES, num_labels=3)).save_pretrained(folder)


def _without_a_block(folder: Path) -> None:
    kept = {name: value for name, value in tensors(folder).items() if ".h.1." not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


def _cut_short(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"short")


def _config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")

    return change


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            _without_a_block,
            r"lacks 12 tensors of its GPT2LMHead.* \(transformer\.h\.1\.attn.*, …\): it is damaged",
        ),
        (_config(n_embd=32), r"lacks \d+ tensors of its GPT2LMHeadModel, or has them in other shapes"),
        (_cut_short, r"transformers cannot load .*base: Error while deserializing header"),
        (_config(n_head=3), r"transformers cannot build the model of .*base: .* must be divisible"),
        (_config(n_layer="two"), r"transformers cannot read .*base: .*n_layer"),
        (
            _config(architectures=["set_seed"]),
            r"architectures = \['set_seed'\], and .* has no such model",
        ),
        (_config(architectures=[5]), r"architectures = \[5\], and transformers \S+ has no such model"),
        (_config(model_type="own", auto_map={"AutoConfig": "own.Config"}), r"cannot read .*base: .*custom code"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_no_code_of_it_runs(
    file: Path, damage: Callable[[Path], None], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(file.parent / "base")
    model = ModelSection.model_validate({"kind": "transformers", "weights": str(file.parent / "base")})
    with pytest.raises(LayoutError, match=f"(?s){says}"):
        assert spec_of(model).weights()  # type: ignore[misc]  # such a spec has them
    assert "Do you wish to run" not in capsys.readouterr().out


def test_sequences_beyond_its_positions_and_weights_of_a_plain_module_are_refused(file: Path) -> None:
    file.write_text(JOB.replace("sequence = 16", "sequence = 17"), encoding="utf-8")
    with pytest.raises(LayoutError, match=r"sequences of 17 tokens, but .* max_position_embeddings = 16: use shorter"):
        check_layout(load_job(file), 2)
    file.write_text(JOB.replace('"transformers"', '"tests.datacenter.checks.test_privacy:tied"'), encoding="utf-8")
    with pytest.raises(LayoutError, match=r"model\.weights with kind = .* has no effect: the module has its weights"):
        check_layout(load_job(file), 2)


def test_an_adapter_of_a_tied_matrix_is_refused(file: Path) -> None:
    lora = {"rank": 2, "targets": ["lm_head"]}
    model = {"kind": "transformers", "weights": str(file.parent / "base"), "lora": lora}
    job = SiloJob.model_validate({"job": {"name": "x", "steps": 1}, "model": model})
    with pytest.raises(LayoutError, match=r"lm_head\.weight is transformer\.wte\.weight too .*: leave out lm_head"):
        spec_of(job.model).build()
    ours = ModelSection.model_validate({"tied_embeddings": True, "lora": {"targets": ["wq", "output"]}})
    with pytest.raises(LayoutError, match=r"output\.weight is tok_embeddings\.weight too"):
        spec_of(ours).build()
