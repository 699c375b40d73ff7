"""The folder of a model: whole or not at all, and other tools read it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors
import yaml

from atoll.operator import BadInputError
from atoll.operator.exports.folder import export_folder
from tests.operator.exports.samples import JOB, WEIGHTS, hostile, model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("exported") / "model"
    export_folder(model(), [WEIGHTS], made)
    return made


def test_the_library_of_safetensors_reads_the_weights(folder: Path) -> None:
    with safetensors.safe_open(folder / "model.safetensors", framework="pt") as opened:
        assert opened.get_tensor("w").tolist() == [[0.0, 1.0], [2.0, 3.0]]
        assert opened.get_tensor("b").tolist() == [1.0, 2.0]


def test_mlflow_loads_the_tensors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow.pyfunc  # noqa: PLC0415  # more than a second

    found = mlflow.pyfunc.load_model(str(folder)).predict(None)
    np.testing.assert_array_equal(found["w"], [[0, 1], [2, 3]])
    assert (found["w"].dtype, found["b"].dtype) == (np.float32, np.uint16)


def test_files_beside_the_weights(folder: Path) -> None:
    assert sorted(one.name for one in folder.iterdir()) == [
        *("MLmodel", "README.md", "code", "history.csv", "job.toml", "model.safetensors", "requirements.txt")
    ]
    assert (folder / "job.toml").read_text(encoding="utf-8") == JOB
    with (folder / "history.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["phase"] for row in rows] == ["abandoned", "released", "released", "released"]
    assert "reason" not in rows[0], "reasons name participants"


def test_a_folder_with_something_in_it_is_refused_before_the_model_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()

    chunks = iter([WEIGHTS])
    with pytest.raises(BadInputError, match=r"exists and is not an empty folder\n.*name another"):
        export_folder(model(), chunks, tmp_path)
    with pytest.raises(BadInputError, match="not an empty folder"):
        export_folder(model(), chunks, tmp_path / "mine.txt")
    assert list(chunks) == [WEIGHTS]


def test_a_model_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield WEIGHTS[:8]
        raise BadInputError("the connection broke")

    with pytest.raises(BadInputError, match="broke"):
        export_folder(model(), chunks(), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    export_folder(model(), [WEIGHTS], tmp_path / "model")
    assert (tmp_path / "model" / "README.md").is_file()
    assert [one.name for one in tmp_path.iterdir()] == ["model"]


def test_hostile_text_stays_text_in_every_file(tmp_path: Path) -> None:
    found = hostile()
    export_folder(found, [bytes(found.layout.size_bytes)], tmp_path / "model")
    described = yaml.safe_load((tmp_path / "model" / "MLmodel").read_text(encoding="utf-8"))
    assert set(described) == {"flavors", "metadata"}
    assert set(described["metadata"]) == {"atoll_run", "atoll_model", "atoll_round"}
    with safetensors.safe_open(tmp_path / "model" / "model.safetensors", framework="np") as opened:
        assert list(opened.keys()) == [found.layout.spans[0].spec.name]
