"""A checkpoint of a cut model, with adapters, becomes a folder that ``transformers`` reads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from atoll.datacenter.checkpoint.export import export
from atoll.datacenter.cli import silo
from atoll.datacenter.errors import LayoutError
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
