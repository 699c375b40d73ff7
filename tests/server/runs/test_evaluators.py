import asyncio
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.runs import evaluators
from atoll.server.runs.evaluators import Judgement, judge, load_evaluators, run_evaluator
from atoll.server.stores import DirectoryBlobStore
from atoll.wire.layout import Dtype, Layout, TensorSpec
from tests.patience import WAIT_S
from tests.server.runs import plugins

HERE = "tests.server.runs.plugins"
LAYOUT = Layout((TensorSpec("w", (2, 2), Dtype.FLOAT32), TensorSpec("b", (3,), Dtype.BFLOAT16)))
CONTENT = np.array([1, 2, 3, 4], np.float32).tobytes() + np.array([0x3F80, 0x4000, 0xBF80], np.uint16).tobytes()


@pytest.fixture
def blobs(tmp_path: Path) -> tuple[DirectoryBlobStore, str]:
    store = DirectoryBlobStore(tmp_path / "blobs")
    with store.create() as writer:
        writer.write(CONTENT)
        return store, writer.commit().name


def test_evaluators_are_loaded_by_name() -> None:
    found = load_evaluators((f"norm={HERE}:norm", f"bad-one={HERE}:failing"))
    assert found == {"norm": plugins.norm, "bad-one": plugins.failing}
    assert load_evaluators(()) == {}


@pytest.mark.parametrize("text", ["", "norm", "norm=", "norm=x", "norm=:f", "norm=x:", "Norm=x:f", "9=x:f", "=x:f"])
def test_an_evaluator_of_the_wrong_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="NAME=MODULE:FUNCTION") as caught:
        load_evaluators((text,))
    assert caught.value.detail.code == "evaluator.form"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no.such.module:f", "No module named 'no'"),
        (f"{HERE}:nothing", "nothing"),
        (f"{HERE}:not_callable", "cannot be called"),
        ("broken_plugin:f", "SyntaxError"),
    ],
)
def test_a_failing_import_is_reported(
    target: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_plugin.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        load_evaluators((f"norm={target}",))
    assert caught.value.detail.code == "evaluator.import"


def test_a_name_is_installed_once() -> None:
    with pytest.raises(InvalidRequestError, match="twice"):
        load_evaluators((f"norm={HERE}:norm", f"norm={HERE}:failing"))


def test_the_model_comes_by_name_read_only_and_widened() -> None:
    plugins.seen.clear()
    assert run_evaluator("mine", plugins.norm, LAYOUT, memoryview(CONTENT)) == Judgement({"server/norm": 14.0})
    (model,) = plugins.seen
    assert model["w"].tolist() == [[1, 2], [3, 4]]
    assert model["b"].dtype == np.dtype(np.float32)
    assert model["b"].tolist() == [1, 2, -1]
    assert not model["w"].flags.writeable


async def test_a_judgement(blobs: tuple[DirectoryBlobStore, str]) -> None:
    found = await asyncio.wait_for(judge("norm", plugins.norm, LAYOUT, *blobs), WAIT_S)
    assert found == Judgement({"server/norm": 14.0})


@pytest.mark.parametrize(
    ("evaluator", "reason"),
    [
        (plugins.failing, "ZeroDivisionError: no data for 2 tensors"),
        (plugins.too_many, "at most 256"),
        (plugins.no_mapping, "AttributeError"),
        (plugins.exiting, "SystemExit: 3"),
        (plugins.interrupted, "KeyboardInterrupt"),
        (plugins.stopping, "StopIteration"),
    ],
)
async def test_failures_of_a_plug_in_are_recorded_as_failed_judgements(
    blobs: tuple[DirectoryBlobStore, str], evaluator: Callable[..., Any], reason: str
) -> None:
    found = await asyncio.wait_for(judge("mine", evaluator, LAYOUT, *blobs), WAIT_S)
    assert found.metrics == {}
    assert found.failure.startswith("evaluator mine failed: ")
    assert reason in found.failure


def test_values_that_are_not_finite_are_left_out_and_named() -> None:
    found = run_evaluator(
        "mine", lambda _: {"good": 1.0, "loss": float("nan"), "worst": -math.inf}, LAYOUT, memoryview(CONTENT)
    )
    assert found == Judgement({"server/good": 1.0}, "evaluator mine gave loss = nan, worst = -inf")


async def test_a_plug_in_that_hangs_is_left_behind(
    blobs: tuple[DirectoryBlobStore, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluators, "PATIENCE_S", 0.05)
    plugins.release.clear()
    found = await asyncio.wait_for(judge("slow", plugins.hanging, LAYOUT, *blobs), WAIT_S)
    assert "TimeoutError" in found.failure
    plugins.release.set()


async def test_a_model_that_is_gone_is_a_judgement(blobs: tuple[DirectoryBlobStore, str]) -> None:
    store, name = blobs
    store.set_aside(name)
    found = await asyncio.wait_for(judge("norm", plugins.norm, LAYOUT, store, name), WAIT_S)
    assert "no blob" in found.failure


def test_one_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_evaluators.py").write_text("def size(model):\n    return {'tensors': float(len(model))}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert load_evaluators(("size=my_own_evaluators:size",))["size"]({}) == {"tensors": 0.0}
    assert sys.path[-1] == str(tmp_path)
