"""Hugging Face checkpoints: the same logits as ``transformers``, the same bytes back, slices by layout."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.huggingface import check_weights, completed, config_of
from atoll.datacenter.job.model import ModelSection
from atoll.datacenter.mesh import Meshes, ParallelDims, join_world
from atoll.datacenter.metrics.flops import llama_flops
from atoll.datacenter.models import spec_of
from atoll.datacenter.models.huggingface import load_weights, save_model, save_pretrained
from atoll.datacenter.parallel.apply import make_model
from atoll.datacenter.sizing.shape import shape_of
from tests.datacenter.hub import LLAMA3
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import assert_same, small, small_in_two, train, whole
from tests.patience import WAIT_S

os.environ["HF_HUB_OFFLINE"] = "1"

SIZES: dict[str, Any] = {"vocab": 64, "layers": 2, "dim": 32, "heads": 4, "kv_heads": 2, "ffn_dim": 64}


def reference(folder: Path, *, shard: str = "5GB", **changes: Any) -> Any:
    """A ``LlamaForCausalLM`` with random weights, saved."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415  # slow to import

    torch.manual_seed(3)
    settings = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.3,
        "rope_theta": 10_000.0,
        **changes,
    }
    model: Any = LlamaForCausalLM(LlamaConfig(**settings))
    model.eval()
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def ours(model: ModelSection, folder: Path) -> torch.nn.Module:
    spec = spec_of(model)
    module = spec.build()
    assert spec.foreign is not None
    assert load_weights(module, spec.foreign, folder) == {name for name, _ in module.named_parameters()}
    return module


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_logits_equal_transformers_and_the_way_back_is_exact(tmp_path: Path, tied: bool) -> None:
    theirs = reference(tmp_path / "theirs", tie_word_embeddings=tied)
    model = ModelSection.model_validate(completed({}, tmp_path / "theirs"))
    check_weights(model)
    assert model.tied_embeddings is tied
    module = ours(model, tmp_path / "theirs")
    tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        torch.testing.assert_close(module(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)

    spec = spec_of(model)
    save_model([module], spec, model, tmp_path / "back")
    assert_same_tensors(load_file(tmp_path / "back" / "model.safetensors"), theirs.state_dict(), tied=tied)

    from transformers import LlamaForCausalLM  # noqa: PLC0415  # slow to import

    again: Any = LlamaForCausalLM.from_pretrained(tmp_path / "back")
    again.eval()
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, theirs(tokens).logits)


RELATIVES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": LLAMA3, "max_position_embeddings": 256},
    "qwen2": {"use_sliding_window": False, "tie_word_embeddings": True},
    "mistral": {"sliding_window": None, "head_dim": 24},
    "qwen3": {"head_dim": 32},
    "gemma": {"head_dim": 24, "hidden_act": "gelu_pytorch_tanh"},
}
"""Model types whose blocks are Llama's, except for these settings, biases, and features of Qwen3 and Gemma."""


@pytest.mark.parametrize("kind", RELATIVES)
def test_relatives_of_llama_have_the_logits_of_transformers_there_and_back(tmp_path: Path, kind: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415  # slow to import

    torch.manual_seed(3)
    sizes = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1}
    theirs: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **heads, **RELATIVES[kind]))
    for name, parameter in theirs.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            torch.nn.init.normal_(parameter)
    theirs.eval()
    theirs.save_pretrained(tmp_path / "theirs")
    section = completed({}, tmp_path / "theirs")
    model = ModelSection.model_validate(section)
    check_weights(model)
    seen = (model.rope_scaling is not None, model.attention_bias, model.qk_norm, model.norm_offset)
    assert seen == (kind == "llama", kind == "qwen2", kind == "qwen3", kind == "gemma")
    module = ours(model, tmp_path / "theirs")
    tokens = torch.randint(64, (2, 128), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        torch.testing.assert_close(module(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)
    spec = spec_of(model)
    save_model([module], spec, model, tmp_path / "back")
    again: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    again.eval()
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, theirs(tokens).logits)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    assert llama_flops(model, 128).parameters == shape_of(model).parameters.value == parameters


def test_a_combination_that_no_architecture_has_is_refused_when_it_is_written() -> None:
    model = ModelSection.model_validate({**SIZES, "qk_norm": True, "attention_bias": True})
    with pytest.raises(LayoutError, match="attention_bias = True, qk_norm = True together are of no Hugging Face"):
        config_of(model)


QWEN3: dict[str, Any] = {"qk_norm": True, "head_dim": 16}
GEMMA: dict[str, Any] = {
    "activation": "gelu_tanh",
    "norm_offset": True,
    "scaled_embeddings": True,
    "tied_embeddings": True,
}


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ranks", "changes", "sequence"),
    [
        pytest.param(2, QWEN3, True, id="qwen3-sequence"),
        pytest.param(2, GEMMA, False, id="gemma-plain"),
        pytest.param(4, QWEN3, True, id="qwen3-sequence-zero3-2", marks=pytest.mark.every_layout),
        pytest.param(4, QWEN3, False, id="qwen3-plain-zero3-2", marks=pytest.mark.every_layout),
        pytest.param(4, GEMMA, True, id="gemma-sequence-zero3-2", marks=pytest.mark.every_layout),
        pytest.param(4, GEMMA, False, id="gemma-plain-zero3-2", marks=pytest.mark.every_layout),
    ],
)
def test_relatives_cut_by_tensor_parallelism_train_as_in_one_process(
    ranks: int, changes: dict[str, Any], sequence: bool
) -> None:
    model = {**SIZES, **changes}
    (alone,) = run_ranks(train, 1, small_in_two(1, model=model))
    cut: dict[str, Any] = {
        "mesh": {"tp": 2},
        "tensor_parallel": {"sequence": sequence},
        "data_parallel": {"method": "zero3"},
    }
    for found in run_ranks(train, ranks, small_in_two(ranks, model=model, **cut)):
        assert_same(found, alone)


@pytest.mark.ranks
def test_biases_and_scaled_frequencies_cut_by_tensor_parallelism_train_as_in_one_process() -> None:
    scaling = {"factor": 8.0, "original_sequence": 8}
    model = {**SIZES, "rope_theta": 100.0, "rope_scaling": scaling, "attention_bias": True}
    (alone,) = run_ranks(train, 1, small_in_two(1, model=model))
    for found in run_ranks(train, 2, small_in_two(2, model=model, mesh={"tp": 2})):
        assert found["losses"] == pytest.approx(alone["losses"], abs=2e-5)


def test_experts_logits_equal_transformers_there_and_back(tmp_path: Path) -> None:
    from transformers import MixtralConfig, MixtralForCausalLM  # noqa: PLC0415  # slow to import

    torch.manual_seed(3)
    config = MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=24,
        num_local_experts=4,
        num_experts_per_tok=2,
        initializer_range=0.3,
    )
    theirs: Any = MixtralForCausalLM(config)
    theirs.eval()
    theirs.save_pretrained(tmp_path / "theirs")
    model = ModelSection.model_validate(completed({}, tmp_path / "theirs"))
    check_weights(model)
    module = ours(model, tmp_path / "theirs")
    tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        torch.testing.assert_close(module(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)
    spec = spec_of(model)
    save_model([module], spec, model, tmp_path / "back")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert_same_tensors(second, first, tied=False)
    job = {**small(mesh={"ep": 2}, data_parallel={"method": "zero3"}), "model": completed({}, tmp_path / "theirs")}
    for found in run_ranks(start, 2, job):
        for name, value in module.named_parameters():
            assert torch.equal(found[name], value), name


def assert_same_tensors(found: dict[str, Tensor], wanted: dict[str, Tensor], *, tied: bool) -> None:
    names = {name for name in wanted if not (tied and name == "lm_head.weight")}
    assert found.keys() == names
    for name in names:
        assert torch.equal(found[name], wanted[name]), name


def test_shards_are_read_and_written_with_their_index(tmp_path: Path) -> None:
    theirs = reference(tmp_path / "theirs", shard="20KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 2
    model = ModelSection.model_validate(completed({}, tmp_path / "theirs"))
    module, spec = ours(model, tmp_path / "theirs"), spec_of(model)
    assert spec.foreign is not None
    parameters = dict(module.named_parameters())
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    asked: list[str] = []

    def gather(name: str) -> Tensor:
        asked.append(name)
        return parameters[name].detach()

    save_pretrained(tmp_path / "back", model, spec.foreign, shapes, gather, shard_bytes=20_000)
    assert asked == list(shapes)
    files = sorted((tmp_path / "back").glob("*.safetensors"))
    assert len(files) > 2
    index = json.loads((tmp_path / "back" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * sum(value.numel() for value in parameters.values())
    found = {name: value for file in files for name, value in load_file(file).items()}
    assert_same_tensors(found, theirs.state_dict(), tied=False)


def start(sections: dict[str, Any]) -> dict[str, Tensor]:
    """Build the job's model on this rank and return its whole parameters."""
    job = SiloJob.model_validate(sections)
    with join_world(WAIT_S) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), world.device.type)
        module = make_model(job, spec_of(job.model), meshes, world.device)
        return {name: whole(value) for name, value in module.named_parameters()}


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {"data_parallel": {"method": "zero3"}}, id="zero3-2"),
        pytest.param(2, {"mesh": {"tp": 2}}, id="tp-2"),
        pytest.param(4, {"mesh": {"tp": 2}, "data_parallel": {"method": "zero3"}}, id="zero3-2-tp-2"),
        pytest.param(3, {"data_parallel": {"method": "zero3"}}, id="zero3-3-uneven"),
    ],
)
def test_each_rank_reads_its_slices(tmp_path: Path, ranks: int, sections: dict[str, Any]) -> None:
    wanted = reference(tmp_path, dtype=torch.bfloat16).state_dict()
    names = spec_of(ModelSection.model_validate(SIZES)).foreign
    assert names is not None
    for found in run_ranks(start, ranks, small(model={**SIZES, "weights": str(tmp_path)}, **sections)):
        for name, value in found.items():
            assert torch.equal(value, wanted[names(name)[0]].float()), name


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "rope_parameters",
            {"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e4},
            "'llama3' without low_freq",
        ),
        ("rope_parameters", {"rope_type": "yarn", "factor": 8.0, "rope_theta": 1e4}, "rope scaling 'yarn'"),
        ("rope_scaling", {"type": "linear", "factor": 2.0}, "rope scaling 'linear'"),
        ("attention_bias", True, "attention_bias = True"),
        ("hidden_act", "gelu", "hidden_act = 'gelu'"),
        ("model_type", "gpt2", "model_type = 'gpt2': supported are"),
        ("model_type", "gemma2", "model_type = 'gemma2' is not possible, because its attention scores .* soft caps"),
        ("model_type", "gemma3_text", "'gemma3_text' is not possible, because .* two bases"),
        ("model_type", "qwen3_moe", "'qwen3_moe' is not possible, because it combines experts"),
        ("quantization_config", {"bits": 4}, "quantization_config"),
        ("hidden_size", None, "hidden_size missing"),
    ],
)
def test_what_our_blocks_lack_is_refused_by_name(tmp_path: Path, key: str, value: object, said: str) -> None:
    config = {
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "rms_norm_eps": 1e-5,
        key: value,
    }
    written = {name: entry for name, entry in config.items() if entry is not None}
    (tmp_path / "config.json").write_text(json.dumps(written))
    with pytest.raises(LayoutError, match=said):
        completed({}, tmp_path)


def test_damaged_or_missing_files_are_named(tmp_path: Path) -> None:
    model = ModelSection.model_validate(SIZES)
    names = spec_of(model).foreign
    assert names is not None
    with pytest.raises(LayoutError, match=r"config\.json cannot be read"):
        check_weights(model.model_copy(update={"weights": str(tmp_path)}))
    module = spec_of(model).build()
    with pytest.raises(LayoutError, match="has neither"):
        load_weights(module, names, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0damaged!")
    with pytest.raises(LayoutError, match=r"model\.safetensors cannot be read"):
        load_weights(module, names, tmp_path)
    reference(tmp_path, intermediate_size=96)
    with pytest.raises(LayoutError, match=r"gate_proj\.weight has shape \[96, 32\], this model's has \[64, 32\]"):
        load_weights(module, names, tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"lm_head.weight": "../x.safetensors"}}')
    with pytest.raises(LayoutError, match="must be in the same folder"):
        load_weights(module, names, tmp_path)
