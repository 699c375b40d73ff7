"""docs/datacenter/fine-tuning.md does what it says: its jobs and commands, over a server and a silo of two ranks."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from atoll.client.cli.app import atoll
from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.job import SiloJob, load_job
from tests.patience import WAIT_S
from tests.system.conftest import Serve
from tests.system.processes import Nursery
from tests.system.silos import Silo

os.environ["HF_HUB_OFFLINE"] = "1"
pytestmark = pytest.mark.system
PAGE = (Path(__file__).parents[2] / "docs" / "datacenter" / "fine-tuning.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def command(start: str) -> list[str]:
    """The page's command that starts with these words, without ``atoll``."""
    (found,) = (line for line in PAGE.splitlines() if line.startswith(start))
    return shlex.split(found)[1:]


def invoke(*words: str) -> str:
    done = CliRunner().invoke(atoll, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def write_texts(folder: Path) -> None:
    """Texts of a few words that repeat, so that a few steps learn something."""
    words = ["once", "upon", "a", "time", "there", "was", "a", "model"]
    lines = [" ".join(words[(start + place) % 8] for place in range(12)) for start in range(64)]
    for name, part in (("text", lines), ("held-out", lines[::4])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in part))


def test_the_page_fine_tunes_a_model(processes: Nursery, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaForCausalLM  # noqa: PLC0415  # slow to import

    tune, private, federation = blocks("toml")
    server = serve("federation")
    silo = Silo(processes, "silo", server, 2, tomllib.loads(tune), "--max-rounds", "3")
    monkeypatch.chdir(silo.folder)
    torch.manual_seed(1)
    exec(compile(blocks("python")[0], "fine-tuning.md", "exec"), {})  # noqa: S102  # the page is ours
    silo.job_file.rename("tune.toml")
    silo.job_file = Path("tune.toml").absolute()
    Path("tune.toml").write_text(tune + '[metrics]\njson_lines = "metrics.jsonl"\n', encoding="utf-8")
    write_texts(silo.folder)

    invoke(*command("atoll silo initial"))
    initial = {name: value.numpy() for name, value in load_file("adapters.safetensors").items()}
    assert set(tomllib.loads(federation)["model"]) == {"initial"}
    silo.start()
    toml = re.sub(r"\[model\]\ninitial = .*\n", "", federation)
    run = server.operator.submit(toml, initial)
    server.operator.finished(run, WAIT_S)
    assert silo.process.wait() == 0

    records = [json.loads(line) for line in Path("metrics.jsonl").read_text().splitlines()]
    losses = [line["evaluation"]["loss"] for line in records if "evaluation" in line]
    assert len(losses) == 3
    assert losses[-1] < losses[0] - 0.1

    released = {name: torch.from_numpy(value.copy()) for name, value in server.operator.arrays(run).items()}
    save(released, Path("tuned.safetensors"))
    invoke(*command("atoll silo export tune.toml --model"))
    merged: Any = LlamaForCausalLM.from_pretrained("tuned")
    base: Any = LlamaForCausalLM.from_pretrained("base")
    factors = [released[f"blocks.0.attention.wq.{name}"] for name in ("lora_b", "lora_a")]
    wanted = base.model.layers[0].self_attn.q_proj.weight + factors[0] @ factors[1] * (16.0 / 8)
    torch.testing.assert_close(merged.model.layers[0].self_attn.q_proj.weight, wanted)
    assert torch.equal(merged.lm_head.weight, base.lm_head.weight)
    model = load_job(silo.job_file).model.model_dump(exclude_unset=True)
    check_layout(SiloJob.model_validate({**tomllib.loads(tune), **tomllib.loads(private), "model": model}), 2)


def save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """As ``atoll run model`` writes it."""
    from safetensors.torch import save_file  # noqa: PLC0415  # used here alone

    save_file(tensors, path)
