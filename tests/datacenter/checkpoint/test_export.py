"""A checkpoint of a cut model, with adapters, becomes a folder that ``transformers`` reads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from atoll.datacenter.checkpoint.export import export
from atoll.datacenter.cli import silo
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.fit import fit
from atoll.datacenter.job import load_job
from tests.datacenter.ranks import run_ranks
from tests.datacenter.train.test_trainer import run

os.environ["HF_HUB_OFFLINE"] = "1"

TEXT = """
[job]
name = "export"
steps = 2
[model]
layers = 2
dim = 32
heads = 2
[model.lora]
rank = 2
[batch]
sequence = 32
global_batch = 2
[mesh]
tp = 2
[checkpoint]
folder = "checkpoints"
every_steps = 100
"""


def test_a_cut_model_becomes_a_folder_that_transformers_reads(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM  # noqa: PLC0415  # slow to import

    file = tmp_path / "job.toml"
    file.write_text(TEXT)
    job = load_job(file)
    run_ranks(run, 2, str(tmp_path), job.model_dump(exclude_unset=True), -1)
    found = CliRunner().invoke(
        silo, ["export", str(file), "--out", str(tmp_path / "out"), "--json"], catch_exceptions=False
    )
    assert json.loads(found.output)["step"] == 2
    theirs: Any = LlamaForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        logits = theirs(torch.arange(32)[None]).logits
    assert logits.shape == (1, 32, 256)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["vocab_size"]) == (2, 256)

    with pytest.raises(LayoutError, match="no checkpoint of step 1; there are 2"):
        export(job, tmp_path / "checkpoints", tmp_path / "out", 1)
    file.write_text(TEXT.replace("dim = 32", "dim = 64"))
    with pytest.raises(LayoutError, match="it belongs to another model"):
        export(load_job(file), tmp_path / "checkpoints", tmp_path / "out")


class Words(nn.Module):
    """A plain module with tied weights and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(3.0))

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(tokens)) * self.scale
        return logits


def words(_settings: object) -> nn.Module:
    return Words()


def numbers(vocab: int) -> TensorDataset:
    tokens = (torch.arange(16)[:, None] + torch.arange(9)) % vocab
    return TensorDataset(tokens[:, :-1], tokens[:, 1:])


def exported(folder: Path, model: str) -> dict[str, Tensor]:
    job = folder / "job.toml"
    job.write_text(f'[job]\nname = "x"\nsteps = 2\n[model]\n{model}\n[checkpoint]\nfolder = "checkpoints"\n')
    CliRunner().invoke(silo, ["export", str(job), "--out", str(folder / "out")], catch_exceptions=False)
    return load_file(folder / "out" / "model.safetensors")


def _kept(model: str, folder: str, layout: Any) -> None:
    kept = {"folder": f"{folder}/checkpoints"}
    out = f"{folder}/wanted"
    fit(model, numbers(32), steps=2, batch=4, lr=1e-2, layout=layout, out=out, progress=False, checkpoint=kept)


@pytest.mark.ranks
def test_a_model_of_other_blocks_is_written_as_fit_writes_it(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415  # slow to import

    sizes = {"vocab_size": 32, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)).save_pretrained(tmp_path / "base")
    run_ranks(_kept, 2, str(tmp_path / "base"), str(tmp_path), "zero3")
    found = exported(tmp_path, 'kind = "transformers"\nweights = "base"')
    wanted = load_file(tmp_path / "wanted" / "model.safetensors")
    begun = load_file(tmp_path / "base" / "model.safetensors")
    assert found.keys() == wanted.keys() == begun.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert all(not torch.equal(found[name], value) for name, value in begun.items())
    for folder in ("out", "wanted"):
        assert (tmp_path / folder / "config.json").read_text() == (tmp_path / "base" / "config.json").read_text()


def test_what_generation_needs_comes_from_the_base(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415  # slow to import

    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    ends = {"max_position_embeddings": 777, "bos_token_id": 5, "eos_token_id": [6, 7], "pad_token_id": 8}
    base = LlamaForCausalLM(LlamaConfig(**sizes, **ends, num_attention_heads=4))
    base.generation_config.update(do_sample=True, top_k=3)
    base.save_pretrained(tmp_path / "base")
    _kept(str(tmp_path / "base"), str(tmp_path), "auto")
    exported(tmp_path, 'weights = "base"')
    for folder in ("out", "wanted"):
        model: Any = LlamaForCausalLM.from_pretrained(tmp_path / folder)
        assert {key: getattr(model.config, key) for key in ends} == ends
        assert (model.generation_config.eos_token_id, model.generation_config.top_k) == ([6, 7], 3)


def test_your_own_module_becomes_one_file_with_its_names(tmp_path: Path) -> None:
    module = Words()
    kept = {"folder": str(tmp_path / "checkpoints")}
    fit(module, numbers(8), steps=2, batch=4, lr=1e-2, progress=False, checkpoint=kept)
    found = exported(tmp_path, f'kind = "{__name__}:words"')
    fresh = Words()
    fresh.load_state_dict(found)
    for name, value in module.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value), name
