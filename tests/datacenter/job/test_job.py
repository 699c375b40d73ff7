"""Errors in a job file name file, line, key, value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.datacenter.job import SiloJob, load_job
from atoll.settings import SettingsFileError, parse

HEAD = '[job]\nname = "a"\nsteps = 1\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{HEAD}[model]\nheads = 3\n", "job.toml:5: model.heads = 3: 3 heads do not divide dim = 128"),
        (f"{HEAD}[model]\nheads = 4\nkv_heads = 3\n", "job.toml:6: model.kv_heads = 3: 3 do not divide the 4 heads"),
        (f"{HEAD}[model]\ndim = 36\nheads = 4\n", "the head width 9 is odd: rotary embeddings rotate pairs"),
        (f"{HEAD}[model]\nlayer = 3\n", 'job.toml:5: model.layer = 3: no such key; did you mean "layers"?'),
        (f"{HEAD}[model]\n[model.moe]\nexperts = 4\nexpert_dim = 8\ntop_k = 5\n", "is more than the 4 experts"),
        (f"{HEAD}[model]\n[mesh]\ndp_shard = 0\n", "mesh.dp_shard = 0: allowed is a whole number from 1, or -1"),
        (f'{HEAD}[model]\n[data]\nsource = "tokens"\n', 'data.path: is missing; source = "tokens" needs it'),
        (f'{HEAD}[model]\n[data_parallel]\nhook = "sign"\n', 'hook = "sign": has no effect: method = "zero3"'),
        (f'{HEAD}[model]\n[memory]\ncheckpointing = "budget"\n', "set compile = true too"),
        (f'{HEAD}[model]\n[optimiser]\nname = "sgd"\nepsilon = 1.0\n', 'has no effect: name = "sgd"'),
        (
            f"{HEAD}[model]\n[optimiser]\nbetas = [0.9, 1.0]\n",
            "allowed are two numbers from 0 up to, but not including",
        ),
        (f"{HEAD}[model]\n[checkpoint]\nkeep = 3\n", "has no effect: no folder is given"),
        (
            f"{HEAD}[model]\n[metrics]\nprofile_steps = [5, 3]\n",
            "allowed are the first and the last step to trace, counted from 1",
        ),
        (HEAD, "model: is missing"),
    ],
)
def test_problems_are_reported(text: str, says: str) -> None:
    with pytest.raises(SettingsFileError) as caught:
        parse(text, SiloJob, "job.toml")
    assert says in str(caught.value)


def test_what_is_left_out_depends_on_what_is_given(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(f"{HEAD}[model]\ndim = 256\nheads = 8\n")
    model = load_job(path).model
    assert (model.kv_heads, model.ffn_dim) == (8, 704)
