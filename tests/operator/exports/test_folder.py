"""The folder of a model: whole or not at all, and other tools read it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors
import yaml

from atoll.operator import BadInputError
from atoll.operator.exports.folder import export_folder
from atoll.operator.ledger import RunLedger
from atoll.wire.errors import SafetensorsError
from tests.operator.exports.samples import JOB, LEDGER, WEIGHTS, hostile, model


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


def test_an_empty_folder_stays_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a mount point, which cannot be replaced, or the working folder, which a shell would lose."""
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o700)
    before = tmp_path.stat()
    export_folder(model(), [WEIGHTS], Path())
    after = tmp_path.stat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert (tmp_path / "README.md").is_file()
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def test_an_empty_folder_stays_empty_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(SafetensorsError):
        export_folder(model(), [WEIGHTS[:8]], tmp_path)
    assert list(tmp_path.iterdir()) == []


def history_of(ledger: RunLedger | None, folder: Path) -> set[str]:
    export_folder(model(ledger=ledger), [WEIGHTS], folder)
    with (folder / "history.csv").open(encoding="utf-8", newline="") as file:
        return set(next(csv.reader(file)))


def test_the_history_of_a_private_run_has_only_what_its_bound_covers(tmp_path: Path) -> None:
    fixed = replace(LEDGER, charges=tuple(replace(one, sampling="none") for one in LEDGER.charges))
    whole = history_of(None, tmp_path / "public")
    drawn = {"cohort", "reported", "wanted", "closed_at", "duration_s", "aggregate_s"}
    assert {"total_weight", *drawn} <= whole
    assert whole - history_of(fixed, tmp_path / "fixed") == {"total_weight"}
    secret = history_of(LEDGER, tmp_path / "secret")
    assert secret & {"total_weight", *drawn} == set()
    assert {"round", "attempt", "kind", "phase", "version", "server/accuracy"} <= secret


def test_hostile_text_stays_text_in_every_file(tmp_path: Path) -> None:
    found = hostile()
    export_folder(found, [bytes(found.layout.size_bytes)], tmp_path / "model")
    described = yaml.safe_load((tmp_path / "model" / "MLmodel").read_text(encoding="utf-8"))
    assert set(described) == {"flavors", "metadata"}
    assert set(described["metadata"]) == {"atoll_run", "atoll_model", "atoll_round"}
    with safetensors.safe_open(tmp_path / "model" / "model.safetensors", framework="np") as opened:
        assert list(opened.keys()) == [found.layout.spans[0].spec.name]
