"""The example of your own model, in every layout that it supports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import load_job
from atoll.datacenter.job.model import ModelSection
from atoll.datacenter.models import spec_of
from tests.datacenter.marks import needs_torch_2_13
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import assert_same, small_in_two, train

EXAMPLES = Path(__file__).parents[3] / "examples" / "silo"
SETTINGS = {"vocab": 64, "dim": 32, "hidden": 64, "layers": 2}
LAYOUTS = (
    pytest.param(2, {"data_parallel": {"method": "zero3"}}, id="zero3-2"),
    pytest.param(2, {"mesh": {"tp": 2}}, id="tp-2", marks=needs_torch_2_13),
)
"""As ``SHARDED_AND_CUT``; the example's running mean needs a rule for DTensors that older versions lack."""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def own(ranks: int, **sections: dict[str, Any]) -> dict[str, Any]:
    return small_in_two(ranks, model={"kind": "own_model:spec", "settings": SETTINGS}, **sections)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """One process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        found: dict[str, Any] = run_ranks(train, 1, own(1))[0]
    return found


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        *LAYOUTS,
        pytest.param(2, {"mesh": {"pp": 2}}, id="pp-2"),
    ],
)
def test_equal_to_one_process(ranks: int, sections: dict[str, Any], alone: dict[str, Any]) -> None:
    for found in run_ranks(train, ranks, own(ranks, **sections)):
        assert_same(found, alone)


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {"data_parallel": {"method": "zero3"}}, id="zero3-2"),
        pytest.param(2, {"mesh": {"tp": 2}}, id="tp-2", marks=[pytest.mark.every_layout, needs_torch_2_13]),
        pytest.param(2, {"mesh": {"pp": 2}, "memory": {"checkpointing": "full"}}, id="pp-2-full"),
    ],
)
def test_blocks_in_a_list(ranks: int, sections: dict[str, Any], alone: dict[str, Any]) -> None:
    job = own(ranks, **sections)
    job["model"]["kind"] = "tests.datacenter.models.listed_model:spec"
    for found in run_ranks(train, ranks, job):
        assert_same(found, alone)


def test_blocks_that_are_no_container_are_refused() -> None:
    model = ModelSection.model_validate(
        {"kind": "tests.datacenter.models.listed_model:spec_of_a_layer", "settings": SETTINGS}
    )
    spec = spec_of(model)
    with pytest.raises(LayoutError, match="blocks = 'norm' is a RMSNorm in the model: name a ModuleDict or ModuleList"):
        spec.blocks_of(spec.build())


def test_its_job_file_is_valid() -> None:
    job = load_job(EXAMPLES / "own_model.toml")
    assert len(spec_of(job.model).tensor) == 6


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("resnet", 'allowed are "llama", "vision", "transformers" and "module:function"'),
        ("no_such_module:spec", "it must be beside the job file, or on PYTHONPATH"),
        ("own_model:no_such_function", "cannot be imported"),
        ("own_model:initial", "not a ModelSpec"),
        ("own_model:spec", r"failed with \[model.settings\] \{\}: KeyError\('vocab'\)"),
    ],
)
def test_a_kind_that_gives_no_spec_is_refused(kind: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind.endswith("initial"):
        monkeypatch.setattr("own_model.initial", lambda _settings: 3)
    with pytest.raises(LayoutError, match=said):
        spec_of(ModelSection.model_validate({"kind": kind}))
