"""``fit`` with a model of ``transformers`` by folder or name: planned if its blocks are ours, else sharded as it is."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from atoll.datacenter.errors import DataError, LayoutError
from atoll.datacenter.fit import fit
from atoll.datacenter.job.huggingface import completed
from atoll.datacenter.job.model import ModelSection
from atoll.datacenter.machine import DATA_SHEETS
from atoll.datacenter.machine.compute import device_memory_bytes
from atoll.datacenter.models import spec_of
from tests.datacenter.hub import cached
from tests.datacenter.ranks import run_ranks
from tests.system.forked import run_forked

PAGE = Path(__file__).parents[2] / "docs" / "datacenter" / "fit.md"
LLAMA = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "initializer_range": 0.1}
GPT2 = {"vocab_size": 32, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
NO_DROPOUT = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}


class Counting:
    """Sequences that count up."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (torch.arange(17) + index) % 32
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**LLAMA, **HEADS)).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(**GPT2, **NO_DROPOUT)).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def fitted(model: str, out: str, steps: int, sections: dict[str, Any]) -> float | None:
    return fit(model, Counting(), steps=steps, batch=8, lr=1e-2, out=out, progress=False, **sections).loss


def next_tokens(folder: Path) -> list[int]:
    module: Any = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        found: list[int] = module.eval()(Counting()[3]["input_ids"][None]).logits.argmax(dim=-1).flatten().tolist()
    return found


@pytest.mark.ranks
def test_a_model_of_our_blocks_is_planned_and_written_alike_in_every_layout(llama: Path, tmp_path: Path) -> None:
    run_ranks(fitted, 1, str(llama), str(tmp_path / "alone"), 3, {})
    wanted = load_file(tmp_path / "alone" / "model.safetensors")
    begun = load_file(llama / "model.safetensors")
    assert wanted.keys() == begun.keys()
    assert all(not torch.equal(wanted[name], begun[name]) for name in wanted)
    for number, sections in enumerate([{}, {"mesh": {"pp": 2}}, {"mesh": {"tp": 2}}]):
        out = tmp_path / str(number)
        run_ranks(fitted, 2, str(llama), str(out), 3, sections)
        found = load_file(out / "model.safetensors")
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, atol=1e-4, rtol=1e-4, msg=f"{sections}: {name}")


def test_the_layout_is_the_plans_and_told(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(str(llama), Counting(), steps=1, batch=8, out=tmp_path / "out")
    said = capsys.readouterr().err
    assert said.splitlines()[-1] == f"the trained model is in {tmp_path / 'out'}"
    told = re.search(r"^layout: .* sequences \(the fastest of \d+ that fit (.*), by prediction\)$", said, re.MULTILINE)
    assert told is not None
    here = f"{device_memory_bytes(torch.device('cpu'), 1) / 2**30:.1f} GiB for each rank"
    assert told[1] == f"this machine ({here}; speeds of {DATA_SHEETS['h100'].name}, because there is no GPU)"
    fit(nn.Linear(2, 2), TensorDataset(torch.ones(4, 2), torch.ones(4, dtype=torch.int64)), steps=1, batch=4)
    said = capsys.readouterr().err
    fits = r"^layout: .* \(0\.00 GiB of parameters, gradients and states fit \d+\.\d GiB, half of a device;"
    assert re.search(fits, said)
    assert said.splitlines()[0].endswith('the planner knows the parts of "llama" models only, not of the given module)')


@pytest.mark.ranks
@pytest.mark.parametrize("layout", [pytest.param("auto", marks=pytest.mark.every_layout), "zero3"])
def test_a_model_of_other_blocks_is_trained_as_it_is(gpt2: Path, tmp_path: Path, layout: str) -> None:
    out = tmp_path / "out"
    before = next_tokens(gpt2)
    losses = run_ranks(_other, 2, str(gpt2), str(out), layout)
    assert all(loss is not None and loss < 0.5 for loss in losses)
    assert next_tokens(out) == [(4 + place) % 32 for place in range(16)] != before
    assert load_file(out / "model.safetensors").keys() == load_file(gpt2 / "model.safetensors").keys()


def _other(model: str, out: str, layout: Any) -> float | None:
    sections: dict[str, Any] = {"memory": {"checkpointing": "full"}} if layout == "zero3" else {}
    return fit(model, Counting(), steps=60, batch=8, lr=1e-2, layout=layout, out=out, progress=False, **sections).loss


def test_features_that_our_blocks_lack_make_a_model_of_transformers(llama: Path) -> None:
    config = (llama / "config.json").read_text(encoding="utf-8")
    (llama / "config.json").write_text(config.replace('"attention_bias": false', '"attention_bias": true'))
    with pytest.raises(LayoutError, match="attention_bias = True"):
        completed({}, llama)
    spec = spec_of(ModelSection.model_validate({"kind": "transformers", "weights": str(llama)}))
    assert spec.blocks == "model.layers"
    with torch.device("meta"):
        names = {name for name, _ in spec.build().named_parameters()}
    assert "model.layers.1.self_attn.o_proj.bias" in names


def test_adapters_are_merged_into_what_is_written(llama: Path, tmp_path: Path) -> None:
    for kind, target in (("llama", "wq"), ("transformers", "q_proj")):
        out = tmp_path / f"{kind}-tuned"
        lora = {"rank": 2, "targets": [target]}
        fit(llama, Counting(), steps=2, batch=8, lr=1e-2, out=out, progress=False, model={"kind": kind, "lora": lora})
        begun, found = (load_file(folder / "model.safetensors") for folder in (llama, out))
        changed = {name for name in begun if not torch.equal(begun[name], found[name])}
        assert changed == {f"model.layers.{block}.self_attn.q_proj.weight" for block in range(2)}


def test_what_would_be_lost_or_contradicts_is_refused(llama: Path, tmp_path: Path) -> None:
    data = Counting()
    with pytest.raises(LayoutError, match=r'would keep nothing: give out="FOLDER"'):
        fit(llama, data, steps=1, batch=8)
    with pytest.raises(LayoutError, match=r"a loss is for a module; load the model"):
        fit(llama, data, steps=1, batch=8, out=tmp_path, loss=lambda _outputs, labels: labels.sum())
    with pytest.raises(LayoutError, match=r"would replace the model that it reads"):
        fit(llama, data, steps=1, batch=8, out=llama)
    with pytest.raises(LayoutError, match=r"is for a model given by name: save the trained module"):
        fit(nn.Linear(2, 2), data, steps=1, batch=8, out=tmp_path)
    with pytest.raises(LayoutError, match=r"there is no folder .*/none/there: give the folder"):
        fit(tmp_path / "none" / "there", data, steps=1, batch=8, out=tmp_path)
    with pytest.raises(LayoutError, match=r"model\.vocab = 65, but .* says 32"):
        fit(llama, data, steps=1, batch=8, out=tmp_path, model={"vocab": 65})
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(LayoutError, match=r"file\"\) cannot be written: File exists; give another folder"):
        fit(llama, data, steps=1, batch=8, out=tmp_path / "file", progress=False)
    floats = TensorDataset(torch.ones(4, 2), torch.ones(4, dtype=torch.int64))
    with pytest.raises(DataError, match=r"TensorDataset\[0\] has an input of shape \(2,\): a language model reads"):
        fit(llama, floats, steps=1, batch=4, out=tmp_path, progress=False)


def test_items_longer_than_its_positions_are_refused(gpt2: Path, tmp_path: Path) -> None:
    items = [{"input_ids": torch.zeros(17, dtype=torch.int64), "labels": torch.zeros(17, dtype=torch.int64)}] * 8
    with pytest.raises(LayoutError, match=r"sequences of 17 tokens, but .* max_position_embeddings = 16: use shorter"):
        fit(gpt2, items, steps=1, batch=8, out=tmp_path / "out", progress=False)


@pytest.mark.parametrize(("place", "what"), [("input_ids", "token"), ("labels", "label")])
def test_tokens_beyond_the_vocabulary_are_named(gpt2: Path, tmp_path: Path, place: str, what: str) -> None:
    items = [{name: part.clone() for name, part in Counting()[index].items()} for index in range(8)]
    items[5][place][3] = 32
    said = rf"list\[5\] has the {what} 32, but the model's vocabulary has 32: use the model's own tokenizer$"
    with pytest.raises(DataError, match=f": {said}"):
        fit(gpt2, items, steps=1, batch=8, out=tmp_path / "out", progress=False)
    held_out: dict[str, Any] = {"held_out": items, "evaluation": {"every_steps": 1}}
    with pytest.raises(DataError, match=f"^held-out {said}"):
        fit(gpt2, Counting(), steps=1, batch=8, out=tmp_path / "out", progress=False, **held_out)


def test_a_library_or_class_that_is_missing_is_told(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = (gpt2 / "config.json").read_text(encoding="utf-8")
    (gpt2 / "config.json").write_text(config.replace("GPT2LMHeadModel", "GPT2Unheard"), encoding="utf-8")
    model = ModelSection.model_validate({"kind": "transformers", "weights": str(gpt2)})
    with pytest.raises(LayoutError, match=r"architectures = \['GPT2Unheard'\], and transformers \S+ has no such model"):
        spec_of(model)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(LayoutError, match=r'model\.kind = "transformers" needs the library: pip install'):
        spec_of(model)


def test_the_pages_twelve_lines_train_a_model_by_its_name(tmp_path: Path) -> None:
    """A small Qwen3 with random weights is in the cache under the page's name; nothing is downloaded."""
    (code,) = re.findall(r"```python\n(from transformers.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= 12
    (name,) = re.findall(r'name = "(.*)"', code)
    snapshot = cached(tmp_path / "hub", name)
    words = {f"w{number}": number for number in range(32)}
    torch.manual_seed(0)
    base = Qwen3ForCausalLM(Qwen3Config(**LLAMA, **HEADS, head_dim=8))
    base.save_pretrained(snapshot)
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(snapshot)
    (tmp_path / "text.txt").write_text(" ".join(f"w{number % 32}" for number in range(9000)), encoding="utf-8")
    (tmp_path / "train.py").write_text(code.replace("lr=2e-5", "lr=1e-2").replace("steps=100", "steps=10"))
    offline = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = run_forked("silo", (sys.executable, "train.py"), tmp_path, offline)
    assert done.returncode == 0, done.stderr
    assert "layout: " in done.stderr
    tuned: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "tuned")
    tokens = torch.arange(65)[None] % 32
    with torch.no_grad():
        before, after = (float(model.eval()(tokens, labels=tokens).loss) for model in (base, tuned))
    assert before > 3.0
    assert after < before / 2
