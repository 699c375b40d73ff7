"""A run's model becomes a folder for ``transformers``: frozen weights from the base, trained ones from the file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from atoll.datacenter.cli import silo
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.federation.initial import write_initial
from atoll.datacenter.federation.released import export_released
from atoll.datacenter.job import SiloJob
from tests.datacenter.models.test_huggingface import SIZES, reference

os.environ["HF_HUB_OFFLINE"] = "1"
JOB = {"job": {"name": "tune", "steps": 1}}


def job(**model: Any) -> SiloJob:
    return SiloJob.model_validate({**JOB, "model": SIZES | model})


@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 4.0}], ids=["whole", "adapters"])
def test_trained_tensors_are_the_files_and_frozen_ones_the_bases(tmp_path: Path, lora: dict[str, Any] | None) -> None:
    base = reference(tmp_path / "base").state_dict()
    given = job(weights=str(tmp_path / "base"), lora=lora)
    write_initial(given, tmp_path / "initial.safetensors")
    trained = {name: value + 0.5 for name, value in load_file(tmp_path / "initial.safetensors").items()}
    save_file(trained, tmp_path / "released.safetensors")
    assert export_released(given, tmp_path / "released.safetensors", tmp_path / "out") == len(trained)
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == base.keys()
    wanted = base["model.layers.1.self_attn.q_proj.weight"]
    if lora is None:
        wanted = wanted + 0.5
    else:
        layer = "blocks.1.attention.wq"
        wanted = wanted + trained[f"{layer}.lora_b"] @ trained[f"{layer}.lora_a"] * 2.0
        assert torch.equal(found["lm_head.weight"], base["lm_head.weight"])
    torch.testing.assert_close(found["model.layers.1.self_attn.q_proj.weight"], wanted)


def test_adapters_without_the_base_are_refused(tmp_path: Path) -> None:
    given = job(lora={})
    write_initial(given, tmp_path / "released.safetensors")
    with pytest.raises(LayoutError, match=r"has no tok_embeddings\.weight \(and \d+ more\).* set model\.weights"):
        export_released(given, tmp_path / "released.safetensors", tmp_path / "out")


def test_another_runs_model_is_refused(tmp_path: Path) -> None:
    write_initial(job(lora={"rank": 2}), tmp_path / "released.safetensors")
    with pytest.raises(LayoutError, match=r"lora_a is \[2, 32\] there, \[8, 32\] here"):
        export_released(job(lora={}), tmp_path / "released.safetensors", tmp_path / "out")


def test_a_step_and_a_model_together_are_refused(tmp_path: Path) -> None:
    for name in ("job.toml", "model.safetensors"):
        (tmp_path / name).write_text('[job]\nname = "x"\nsteps = 1\n[model]\n')
    words = ["export", str(tmp_path / "job.toml"), "--out", str(tmp_path), "--step", "1"]
    found = CliRunner().invoke(silo, [*words, "--model", str(tmp_path / "model.safetensors")])
    assert found.exit_code == 2
    assert "give only one of them" in found.output
