"""User-supplied data: the page's example, and what is refused."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.datacenter.data import open_batches, open_held_out, open_job_batches
from atoll.datacenter.errors import DataError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.training import BatchSection, DataSection
from atoll.datacenter.mesh import join_world
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import train
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import small
from tests.patience import WAIT_S

PAGE = Path(__file__).parents[3] / "docs" / "datacenter" / "data.md"
BATCH = BatchSection(sequence=16, global_batch=4)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The example's job section; its module can be imported."""
    section = PAGE.read_text(encoding="utf-8").partition("## Your own data")[2].partition("## Traps")[0]
    code, toml = re.findall(r"```(?:python|toml)\n(.*?)```", section, re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tomllib.loads(toml)


def trained(folder: str, sections: dict[str, Any]) -> float | None:
    with join_world(WAIT_S) as world:
        return train(SiloJob.model_validate(sections), Path(folder), world, Unwatched(), console=False).loss


def test_the_pages_example_trains_on_two_ranks(page: dict[str, Any], tmp_path: Path) -> None:
    """The next number follows from the last: an untrained model's loss is ln 64 = 4.2."""
    steps = {"name": "own", "steps": 60, "seed": 1}
    sections = small(job=steps, batch={"micro_batch": 4}, optimiser={"lr": 1e-2}, **page)
    losses = run_ranks(trained, 2, str(tmp_path), sections)
    assert max(losses) < 3.0


def test_the_splits_share_nothing(page: dict[str, Any]) -> None:
    job = SiloJob.model_validate(small(**page))
    train_part, held_out = (open_job_batches(job, Path(), split) for split in ("train", "held_out"))
    assert train_part.source.digest != held_out.source.digest
    batch = held_out.next_step().share(0, 1)
    np.testing.assert_array_equal(batch.tokens.numpy()[:, 1:], batch.labels.numpy()[:, :-1])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nothing", "cannot be imported"),
        ("unnamed", r"unnamed\[0\] is int: return \(input, label\)"),
        ("in_float64", "inputs of float64 and labels of int64; give int64 tokens or float32 inputs"),
        ("doubled", r"rows\(\[0\]\) returned 2 inputs and 1 labels"),
        ("empty", "has no sequences in the train split"),
        ("failing", r"failed with \[data.settings\] {'a': 1}: KeyError\('count'\)"),
    ],
)
def test_mistakes_are_named(function: str, said: str) -> None:
    data = DataSection.model_validate({"source": f"tests.datacenter.data.own_data:{function}", "settings": {"a": 1}})
    with pytest.raises(DataError, match=said):
        open_batches(data, BATCH, 0, Path())


def test_settings_of_other_sources_are_refused() -> None:
    with pytest.raises(ValueError, match="tokenizer"):
        DataSection.model_validate({"source": "mine:Counting", "tokenizer": "bytes"})
    with pytest.raises(ValueError, match="settings"):
        DataSection.model_validate({"source": "digits", "settings": {"a": 1}})


def _language(wrong: str, row: int) -> int:
    """Read the rows; return the greatest token."""
    data = {"source": "tests.datacenter.data.own_data:beyond", "settings": {"wrong": wrong, "row": row}}
    job = SiloJob.model_validate(small(data=data))
    batches = open_job_batches(job, Path())
    return int(batches.next_step().share(0, 1).tokens.max())


@pytest.mark.parametrize(
    ("wrong", "row", "said"),
    [
        ("token", 0, r"beyond\[0\] has the token 64, but the model's vocabulary has 64: use the model's own tokenizer"),
        ("token", 5, r"beyond\[5\] has the token 64"),
        ("label", 6, r"beyond\[6\] has the label -1"),
        ("length", 0, r"shape \(\d+,\): a language model with batch\.sequence = (\d+) reads \1 token ids"),
        ("labels", 0, r"labels of shape \(\d+,\): give each token one label, the next token, or -100"),
    ],
)
def test_a_language_models_rows_are_checked_before_they_reach_it(wrong: str, row: int, said: str) -> None:
    with pytest.raises(DataError, match=said):
        _language(wrong, row)


def test_labels_that_do_not_count_are_allowed() -> None:
    assert _language("nothing", 0) == 15


def _of_transformers(folder: Path, wrong: str, config: dict[str, Any]) -> SiloJob:
    """A job with rows of 16 tokens, of a model that takes its own data's length, and batch.sequence = 128."""
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    settings = {"wrong": wrong, "row": 5, "tokens": 16}
    return SiloJob.model_validate(
        {
            "job": {"name": "own", "steps": 1},
            "model": {"kind": "transformers", "weights": str(folder)},
            "data": {"source": "tests.datacenter.data.own_data:beyond", "settings": settings},
            "batch": {"global_batch": 8},
            "evaluation": {"every_steps": 1},
        }
    )


@pytest.mark.parametrize(("wrong", "value"), [("token", 64), ("label", -1)])
def test_rows_of_a_model_of_transformers_are_checked_too(tmp_path: Path, wrong: str, value: int) -> None:
    job = _of_transformers(tmp_path, wrong, {"vocab_size": 64})
    said = rf"beyond\[5\] has the {wrong} {value}, but the model's vocabulary has 64: use the model's own tokenizer$"
    with pytest.raises(DataError, match=said):
        open_job_batches(job, Path()).next_step().share(0, 1)
    held_out = open_held_out(job, Path())
    assert held_out is not None
    with pytest.raises(DataError, match=said):
        list(held_out.shares(0, 1))


@pytest.mark.parametrize(
    ("wrong", "config"),
    [("token", {"vocab_size": 65}), ("token", {}), ("classes", {"vocab_size": 16}), ("images", {"vocab_size": 2})],
    ids=["in the vocabulary", "no vocabulary", "classes", "images"],
)
def test_other_data_of_a_model_of_transformers_is_not_checked(
    tmp_path: Path, wrong: str, config: dict[str, Any]
) -> None:
    job = _of_transformers(tmp_path, wrong, config)
    assert len(open_job_batches(job, Path()).next_step().share(0, 1)) == 8


def test_text_beyond_the_vocabulary_of_a_model_of_transformers_is_refused(tmp_path: Path) -> None:
    job = _of_transformers(tmp_path, "nothing", {"vocab_size": 255})
    job = job.model_copy(update={"data": DataSection()})
    with pytest.raises(DataError, match=r"a vocabulary of 256, the model's is 255: use the model's own tokenizer$"):
        open_job_batches(job, Path())
    with pytest.raises(DataError, match=r"vocabulary of 256, the model's is 255: use held-out data"):
        open_held_out(job, Path())
