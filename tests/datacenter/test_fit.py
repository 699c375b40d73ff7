"""A plain module and a plain dataset, trained from a script."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from atoll.datacenter.errors import DataError, LayoutError
from atoll.datacenter.fit import Layout, fit
from atoll.settings import SettingsFileError
from tests.datacenter.ranks import RankError, run_ranks
from tests.system.forked import run_forked
from tests.system.processes import ATOLL

PAGE = Path(__file__).parents[2] / "docs" / "datacenter" / "fit.md"
FEATURES, CLASSES = 6, 3
DIGITS_LOADED = {"MORE_LOADED": "sklearn.datasets"}
"""Loaded once for all processes of a launcher, not by each: see ``tests.system.forker.launch``."""


class Net(nn.Module):
    """Two repeated blocks between plain layers, a buffer, and an output whose weight is tied to the input's."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Buffer(torch.tensor(2.0))
        self.embed = nn.Linear(FEATURES, 16, bias=False)
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])
        self.back = nn.Linear(16, FEATURES, bias=False)
        self.back.weight = nn.Parameter(torch.randn(FEATURES, 16) / 4)
        self.output = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.embed(inputs * self.scale)
        for layer in self.layers:
            hidden = hidden + torch.relu(layer(hidden))
        logits: Tensor = self.output(self.back(hidden))
        return logits


def examples(seed: int = 0) -> TensorDataset:
    """The class is the largest of three features."""
    inputs = torch.randn(256, FEATURES, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs[:, :CLASSES].argmax(dim=1))


def fitted(layout: Layout, seed_by_rank: bool = False, **sections: Any) -> tuple[float, dict[str, list[float]], float]:
    """Last loss, trained weights, accuracy."""
    torch.manual_seed(torch.distributed.get_rank() if seed_by_rank and torch.distributed.is_initialized() else 0)
    module, data = Net(), examples()
    summary = fit(module, data, steps=60, batch=32, lr=1e-2, layout=layout, progress=False, **sections)
    inputs, labels = data.tensors
    accuracy = float((module(inputs).argmax(dim=1) == labels).float().mean())
    assert summary.loss is not None
    assert summary.finished
    return summary.loss, {name: value.flatten().tolist() for name, value in module.state_dict().items()}, accuracy


@pytest.fixture(scope="module")
def alone() -> tuple[float, dict[str, list[float]], float]:
    ((loss, weights, accuracy),) = run_ranks(fitted, 1, "auto")
    return loss, weights, accuracy


def test_one_process_learns_in_place(alone: tuple[float, dict[str, list[float]], float]) -> None:
    loss, weights, accuracy = alone
    assert loss < 0.5
    assert accuracy > 0.85
    assert weights["scale"] == [2.0]


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("layout", "sections"),
    [("auto", {}), ("zero3", {}), ("zero3", {"memory": {"checkpointing": "full"}})],
    ids=["ddp", "zero3", "recomputed"],
)
def test_two_ranks_end_with_the_weights_of_one_process(
    layout: Layout, sections: dict[str, Any], alone: tuple[float, dict[str, list[float]], float]
) -> None:
    for loss, weights, _ in run_ranks(_fitted_with, 2, layout, sections):
        assert loss == pytest.approx(alone[0], abs=1e-4)
        for name, values in alone[1].items():
            assert weights[name] == pytest.approx(values, abs=1e-4), name


def test_held_out_data_is_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_file = tmp_path / "log.jsonl"
    sections: dict[str, Any] = {"evaluation": {"every_steps": 30}, "metrics": {"json_lines": str(log_file)}}
    summary = fit(Net(), examples(), steps=60, batch=32, lr=1e-2, held_out=examples(1), **sections)
    found = [json.loads(line)["evaluation"] for line in log_file.read_text().splitlines() if "evaluation" in line]
    assert [(one["step"], one["tokens"]) for one in found] == [(0, 256), (30, 256), (60, 256)]
    assert summary.held_out_loss == found[-1]["loss"] < found[0]["loss"] / 2
    assert f"step 60/60  held-out loss {summary.held_out_loss:.4f}" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"fit\(\.\.\., held_out="):
        fit(Net(), examples(), steps=1, batch=32, progress=False, evaluation={"every_steps": 1})
    with pytest.raises(LayoutError, match=r'held_out=...\) is not evaluated: give evaluation=\{"every_steps": N\}'):
        fit(Net(), examples(), steps=1, batch=32, progress=False, held_out=examples(1))


def test_wrong_arguments_are_refused_before_the_ranks_meet() -> None:
    wrong: Any = {"layout": "fsdp"}
    with pytest.raises(LayoutError, match=r"""layout="fsdp"\): allowed are 'auto', 'ddp'"""):
        fit(Net(), examples(), steps=1, batch=32, **wrong)
    wrong = {"seed": 3}
    with pytest.raises(LayoutError, match=r"seed=3\): give the keys of a section"):
        fit(Net(), examples(), steps=1, batch=32, **wrong)
    unusable: Any = DataLoader(examples())
    with pytest.raises(DataError, match=r"DataLoader is not map-style: give a dataset with __len__ and __getitem__"):
        fit(Net(), unusable, steps=1, batch=32)
    unlabelled: Any = [{"input_ids": [1, 2], "attention_mask": [1, 1]}]
    with pytest.raises(DataError, match=r"list\[0\] is a mapping with the keys input_ids, attention_mask: return"):
        fit(Net(), unlabelled, steps=1, batch=1)


def _fitted_with(layout: Layout, sections: dict[str, Any]) -> tuple[float, dict[str, list[float]], float]:
    return fitted(layout, seed_by_rank=True, **sections)


class Counting:
    """Sequences that count up: a mapping of token ids and labels for each."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (torch.arange(9) + index) % 32
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}


def _language(kind: str) -> tuple[list[float], list[float], bool]:
    """First and last loss of a model of ``transformers``, and whether its tied weights are still one tensor."""
    torch.manual_seed(0)
    module = _model(kind)
    before = dict(module.named_buffers())["model.rotary_emb.inv_freq"].clone() if kind == "llama" else None
    first = fit(module, Counting(), steps=1, batch=8, layout="zero3", progress=False)
    last = fit(module, Counting(), steps=60, batch=8, lr=1e-2, layout="zero3", progress=False)
    if before is not None:
        assert torch.equal(dict(module.named_buffers())["model.rotary_emb.inv_freq"], before)
    tied = module.get_input_embeddings().weight is module.get_output_embeddings().weight
    assert first.loss is not None
    assert last.loss is not None
    module.eval()
    logits = module(Counting()[3]["input_ids"][None]).logits
    return [first.loss, last.loss], logits.argmax(dim=-1).flatten().tolist(), tied


def _model(kind: str) -> PreTrainedModel:
    if kind == "gpt2":
        sizes = {"vocab_size": 32, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
        return GPT2LMHeadModel(GPT2Config(**sizes, embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0))
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1))


@pytest.mark.ranks
@pytest.mark.parametrize(("kind", "tied"), [("gpt2", True), ("llama", False)])
def test_models_of_transformers_train_sharded(kind: str, tied: bool) -> None:
    for (first, last), predicted, is_tied in run_ranks(_language, 2, kind):
        assert first > 2.0
        assert last < 0.5
        assert predicted == [(4 + place) % 32 for place in range(8)]
        assert is_tied == tied


def _different_data() -> None:
    fit(Net(), examples(torch.distributed.get_rank()), steps=1, batch=4, progress=False)


@pytest.mark.ranks
def test_datasets_that_differ_between_ranks_are_refused() -> None:
    with pytest.raises(RankError, match="the dataset of rank 1 differs from rank 0's"):
        run_ranks(_different_data, 2)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], r"list is empty"),
        ([3.0], r"list\[0\] is float: return \(input, label\)"),
        ([(torch.zeros(2), 0.5)], r"list\[0\] has labels of float64: return integers"),
        ([(torch.zeros(2), 1), (torch.zeros(3), 1)], r"list\[1\] has an input of shape \(3,\)"),
    ],
)
def test_a_dataset_of_something_else_is_refused(items: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        fit(Net(), items, steps=1, batch=1)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"schedule": {"warmup": 3}}, "schedule.warmup"),
        ({"optimiser": {"name": "adam"}}, "optimiser.name"),
    ],
)
def test_settings_that_do_not_exist_are_named(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsFileError, match=re.escape(message)):
        fit(Net(), examples(), steps=1, batch=4, **sections)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "fit(): batch = 0: allowed is a whole number from 1 to 16777216"),
        ({"batch": "8"}, 'fit(): batch = "8": allowed is a whole number from 1 to 16777216'),
        ({"batch": 1 << 25}, "fit(): batch = 33554432: allowed is a whole number from 1 to 16777216"),
        ({"steps": 0}, "fit(): steps = 0: allowed is a whole number from 1 to 2^40"),
        ({"lr": -1.0}, "fit(): lr = -1.0: allowed is a number above 0"),
        ({"job": {"steps": 0}}, "fit(): job.steps = 0: allowed is a whole number from 1 to 2^40"),
        ({"optimiser": {"lr": 0}}, "fit(): optimiser.lr = 0: allowed is a number above 0"),
    ],
)
def test_errors_name_the_argument_or_the_key_that_the_caller_wrote(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsFileError) as error:
        fit(Net(), examples(), **{"steps": 1, "batch": 4, "progress": False} | arguments)
    assert str(error.value) == message


def test_a_batch_larger_than_the_dataset_is_refused() -> None:
    with pytest.raises(
        DataError,
        match=r"^fit\(\): batch = 257: TensorDataset has only 256 items: set batch lower, or provide more data$",
    ):
        fit(Net(), examples(), steps=1, batch=257, progress=False)


def test_settings_describe_a_layout_or_leave_it_to_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for key, value in (("bucket_mb", 1), ("method", "zero1"), ("cpu_offload", True)):
        fit(Net(), examples(), steps=1, batch=4, data_parallel={key: value})
        said[key] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("layout: ")]
    assert said["bucket_mb"] == said["method"] == []
    (chosen,) = said["cpu_offload"]
    assert "zero3" in chosen
    assert "cpu_offload and float8_gather need shards" in chosen


def _cut() -> dict[str, str]:
    """The errors that refuse to cut a plain module along each axis."""
    refused = {}
    for axis in ("tp", "pp", "cp"):
        with pytest.raises(LayoutError) as error:
            fit(Net(), examples(), steps=1, batch=4, progress=False, mesh={axis: 2})
        refused[axis] = str(error.value)
    return refused


@pytest.mark.ranks
def test_a_plain_module_is_not_cut_inside() -> None:
    refused, _ = run_ranks(_cut, 2)
    for axis in ("tp", "pp", "cp"):
        assert re.search(rf"mesh.{axis} = 2: a plain module .* return a ModelSpec", refused[axis])


def test_settings_of_blocks_need_blocks() -> None:
    with pytest.raises(LayoutError, match=r"memory\.compile works on repeated blocks"):
        fit(nn.Linear(FEATURES, CLASSES), examples(), steps=1, batch=4, memory={"compile": True})


def _resumed(folder: str, steps: int) -> tuple[int, int | None]:
    torch.manual_seed(0)
    kept = {"folder": f"{folder}/kept", "every_steps": 2}
    summary = fit(Net(), examples(), steps=steps, batch=32, progress=False, checkpoint=kept)
    return summary.steps, summary.resumed_at


def test_the_same_call_continues_from_its_checkpoint(tmp_path: Path) -> None:
    assert run_ranks(_resumed, 1, str(tmp_path), 3) == [(3, None)]
    assert run_ranks(_resumed, 1, str(tmp_path), 5) == [(5, 3)]


def test_it_tells_from_where_it_continues_and_that_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = str(tmp_path / "kept")
    said = []
    for steps in (2, 3, 3):
        fit(Net(), examples(), steps=steps, batch=32, layout="ddp", checkpoint={"folder": kept})
        lines = capsys.readouterr().err.splitlines()
        said.append([re.sub(r"  loss .*", "", line) for line in lines])
    assert said == [
        ["step 2/2"],
        [f"continues after step 2 of {kept}", "step 3/3"],
        [f"nothing is left to train: {kept} has step 3, and steps = 3"],
    ]
    fit(Net(), examples(), steps=4, batch=32, layout="ddp", checkpoint={"folder": kept}, progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.ranks
@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param([], marks=pytest.mark.every_case),
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    ],
)
def test_the_pages_script_runs(launcher: list[str], tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    (tmp_path / "train.py").write_text(code.group(1))
    done = run_forked("silo", (sys.executable, *launcher, "train.py"), tmp_path, DIGITS_LOADED)
    assert done.returncode == 0, done.stderr
    accuracies = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("accuracy")]
    assert accuracies
    assert min(accuracies) > 0.9


@pytest.mark.ranks
def test_the_pages_job_trains_the_same(tmp_path: Path) -> None:
    """The job is the page's with fewer steps; the command and its ranks find the module beside the job file."""
    page = PAGE.read_text(encoding="utf-8")
    (mine,) = re.findall(r"```python\n(# mine\.py\n.*?)```", page, re.DOTALL)
    (job,) = re.findall(r"```toml\n(# job\.toml\n.*?)```", page, re.DOTALL)
    assert "atoll silo train job.toml --nproc 2\n" in page
    (tmp_path / "mine.py").write_text(mine)
    (tmp_path / "job.toml").write_text(job.replace("steps = 300", "steps = 40"))
    command = (*ATOLL, "silo", "train", "job.toml", "--nproc", "2", "--json")
    done = run_forked("silo", command, tmp_path, DIGITS_LOADED)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert (outcome["outcome"], outcome["step"]) == ("finished", 40)
    losses = [float(found) for found in re.findall(r"step +\d+/40  loss ([0-9.]+)", done.stderr)]
    assert losses[-1] < 2.0 < losses[0]
