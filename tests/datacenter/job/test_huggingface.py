"""Jobs that start from a Hugging Face checkpoint: its folder is found, and its sizes need not be written."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob, load_job
from atoll.datacenter.job.huggingface import check_weights, find_checkpoint
from atoll.datacenter.job.model import ModelSection
from atoll.settings import SettingsFileError
from tests.datacenter.hub import LLAMA3, cached

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "rms_norm_eps": 1e-5,
}
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "base")
    return tmp_path


def write(folder: Path, **changes: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes), encoding="utf-8")


def job_in(folder: Path, model: str) -> SiloJob:
    (folder / "job.toml").write_text(f'[job]\nname = "x"\nsteps = 1\n[model]\n{model}\n', encoding="utf-8")
    return load_job(folder / "job.toml")


def test_sizes_that_are_not_written_are_the_checkpoints(folder: Path) -> None:
    model = job_in(folder, 'weights = "base"\nlora = { rank = 4 }').model
    assert (model.vocab, model.dim, model.layers, model.heads, model.kv_heads) == (64, 32, 2, 8, 2)
    assert (model.head_dim, model.ffn_dim, model.norm_epsilon, model.tied_embeddings) == (4, 48, 1e-5, False)
    assert model.weights == str(folder / "base")
    assert model.lora is not None
    assert model.lora.rank == 4
    check_weights(model)


def test_tables_are_the_checkpoints_too_and_may_add_to_it(folder: Path) -> None:
    write(folder / "base", rope_parameters=LLAMA3)
    scaling = job_in(folder, 'weights = "base"\n[model.rope_scaling]\nfactor = 8.0').model.rope_scaling
    assert scaling is not None
    assert (scaling.factor, scaling.original_sequence) == (8.0, 32)
    write(folder / "base", **MIXTRAL)
    experts = job_in(folder, 'weights = "base"\n[model.moe]\ncapacity_factor = 2.0').model.moe
    assert experts is not None
    assert (experts.experts, experts.top_k, experts.expert_dim, experts.capacity_factor) == (4, 2, 48, 2.0)


def test_written_sizes_that_contradict_are_told_with_both_values(folder: Path) -> None:
    with pytest.raises(LayoutError) as raised:
        job_in(folder, 'weights = "base"\nvocab = 65\ndim = 32\nkv_heads = 3\nnorm_epsilon = 1e-6')
    config = folder / "base" / "config.json"
    assert raised.value.problems == (
        f"model.vocab = 65, but {config} says 64: leave it out, or set model.vocab = 64",
        f"model.kv_heads = 3, but {config} says 2: leave it out, or set model.kv_heads = 2",
        f"model.norm_epsilon = 1e-06, but {config} says 1e-05: leave it out, or set model.norm_epsilon = 1e-05",
    )


@pytest.mark.parametrize(
    ("changes", "written", "says"),
    [
        ({}, "[model.moe]\nexperts = 4\nexpert_dim = 8", r"the job has \[model\.moe\], but .* has none"),
        ({}, "[model.rope_scaling]\nfactor = 8.0", r"the job has \[model\.rope_scaling\], but .* has none"),
        ({"rope_parameters": LLAMA3}, "[model.rope_scaling]\nfactor = 4.0", r"factor = 4\.0, but .* 8\.0"),
        (MIXTRAL, "[model.moe]\nexperts = 8", r"model\.moe\.experts = 8, but .* says 4"),
        (MIXTRAL, "[model.moe]\nshared_experts = 1", r"model\.moe\.shared_experts = 1, but .* says 0"),
    ],
)
def test_written_tables_that_contradict_are_told(
    folder: Path, changes: dict[str, Any], written: str, says: str
) -> None:
    write(folder / "base", **changes)
    with pytest.raises(LayoutError, match=says):
        job_in(folder, f'weights = "base"\n{written}')


def test_a_model_made_in_python_is_compared_too(folder: Path) -> None:
    write(folder / "base", rope_parameters=LLAMA3)
    model = ModelSection.model_validate({"dim": 32, "heads": 8, "weights": str(folder / "base")})
    with pytest.raises(LayoutError, match=r"set \[model\.rope_scaling\] to factor = 8\.0, low_frequency = 1\.0"):
        check_weights(model)


def test_a_job_without_its_checkpoint_needs_written_sizes(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match=r"there is no folder .*/base, and .*; to plan without it, write the sizes"):
        job_in(tmp_path, 'weights = "base"')
    model = job_in(tmp_path, 'weights = "base"\nvocab = 64\nlayers = 2').model
    assert (model.vocab, model.weights) == (64, str(tmp_path / "base"))


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("", 'model.weights: is missing: kind = "transformers" builds the model of a checkpoint'),
        ('weights = "base"\ndim = 32', 'model.dim = 32: has no effect: kind = "transformers" takes the model as it is'),
    ],
)
def test_a_transformers_model_is_its_checkpoint(folder: Path, written: str, says: str) -> None:
    with pytest.raises(SettingsFileError) as raised:
        job_in(folder, f'kind = "transformers"\n{written}')
    assert says in str(raised.value)
    model = job_in(folder, 'kind = "transformers"\nweights = "base"').model
    assert (model.kind, model.weights) == ("transformers", str(folder / "base"))


def test_a_name_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    write(snapshot := cached(tmp_path / "hub", "acme/small"))
    assert job_in(tmp_path, 'weights = "acme/small"').model.weights == str(snapshot)
    with pytest.raises(LayoutError, match=r'"acme/large": there is no folder .*, and the model is not in the Hugging '):
        job_in(tmp_path, 'weights = "acme/large"')


def test_what_is_not_found_is_told_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LayoutError, match=r'^"\.\./x": there is no folder .*: give the folder of a Hugging Face'):
        find_checkpoint("../x", tmp_path, download=True)

    def unreachable(name: str, **_options: Any) -> str:
        raise LocalEntryNotFoundError(name)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(LayoutError, match=r"be downloaded .*LocalEntryNotFoundError\): run `hf download acme/x`"):
        find_checkpoint("acme/x", tmp_path, download=True)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(LayoutError, match="need huggingface_hub: pip install transformers, or give the folder"):
        find_checkpoint("acme/x", tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads = 0: allowed is a whole number from 1"),
        ({"hidden_size": [1]}, r"hidden_size = \[1\]: allowed is a whole number from 1"),
        ({"vocab_size": "64"}, "vocab_size = '64': allowed is a whole number from 1"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True: allowed is a whole number from 1"),
        ({"hidden_size": None}, "hidden_size missing"),
        ({"rms_norm_eps": None}, "rms_norm_eps missing"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan: allowed is a number above 0"),
        ({"rope_theta": {"full": 1}}, "rope_theta = {'full': 1}: allowed is a number above 0"),
        ({"rope_parameters": "default"}, "rope_parameters = 'default': allowed is an object"),
        ({"rope_parameters": LLAMA3 | {"factor": "8"}}, r"rope_parameters\.factor = '8': allowed is a number above 0"),
        ({"rope_parameters": {"rope_type": ["default"]}}, r"rope scaling \['default'\]"),
        ({"model_type": ["llama"]}, r"model_type = \['llama'\]: supported are 'llama'"),
        ({"hidden_act": ["silu"]}, r"hidden_act = \['silu'\]: this model has only 'silu'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes': allowed is true or false"),
        ({"model_type": "mixtral"}, "num_local_experts, num_experts_per_tok missing"),
    ],
)
def test_values_of_the_wrong_type_are_told_with_file_and_key(folder: Path, changes: dict[str, Any], says: str) -> None:
    write(folder / "base", **changes)
    with pytest.raises(LayoutError, match=f"^{re.escape(str(folder / 'base' / 'config.json'))}: {says}"):
        job_in(folder, 'weights = "base"')


@pytest.mark.parametrize("content", [b"", b"[1]", b"[" * 100_000, b"\xff\xfe", b"null"])
def test_a_config_that_is_no_json_object_is_told(folder: Path, content: bytes) -> None:
    (folder / "base" / "config.json").write_bytes(content)
    with pytest.raises(LayoutError, match=r"config\.json is not (JSON|a JSON object)"):
        job_in(folder, 'weights = "base"')
