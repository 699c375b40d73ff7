"""Runs in a real MLflow, whose store is an SQLite file."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll.operator import BadInputError, OperatorError
from atoll.operator.exports.mlflow import MAX_NAME, MlflowWriter, mlflow_name
from atoll.operator.exports.sending import to_mlflow
from atoll.operator.exports.tracked import Tracked, tracked
from tests.operator.exports.samples import DETAIL, HOSTILE, ROUNDS, hostile

RUNNING = replace(DETAIL, run=replace(DETAIL.run, status="running", finished_at=None), rounds=ROUNDS[:2])


@pytest.fixture(scope="module")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a store without runs, to copy: MLflow takes half a second of processor to make one."""
    from mlflow.tracking import MlflowClient  # noqa: PLC0415  # more than a second

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.chdir(path.parent)
        MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(tmp_path: Path, new_store: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)  # a local store keeps artifacts in ./mlruns
    shutil.copy(new_store, tmp_path)
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture
def client(uri: str) -> Any:
    from mlflow.tracking import MlflowClient  # noqa: PLC0415  # more than a second

    return MlflowClient(uri)


def sent(uri: str, *states: Tracked, experiment: str = "study") -> str:
    return to_mlflow(states, _artifacts, experiment=experiment, tracking_uri=uri)


def _artifacts(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "README.md").write_text("# card", encoding="utf-8")
    (folder / "report.html").write_text("<html></html>", encoding="utf-8")


def curve(client: Any, run: str, name: str) -> list[tuple[int, float, int]]:
    return [(one.step, one.value, one.timestamp) for one in client.get_metric_history(run, name)]


def test_settings_metrics_tags_and_artifacts(client: Any, uri: str) -> None:
    made = sent(uri, tracked(DETAIL))
    found = client.get_run(made)
    assert (found.info.status, found.info.run_name) == ("FINISHED", "digits")
    assert (found.info.start_time, found.info.end_time) == (100_000, 130_000)
    assert (found.data.params["training.lr"], found.data.params["cohort.size"]) == ("0.1", "3")
    assert found.data.tags["atoll.run"] == "rabcdefghijkl"
    assert curve(client, made, "eval/accuracy") == [(0, 0.1, 105_000), (1, 0.2, 115_000), (2, 0.75, 125_000)]
    assert sorted(one.path for one in client.list_artifacts(made)) == ["model", "report.html"]
    assert client.get_experiment_by_name("study").experiment_id == found.info.experiment_id


def test_a_second_time_makes_no_second_run_and_no_second_point(client: Any, uri: str) -> None:
    made = sent(uri, tracked(DETAIL))
    assert sent(uri, tracked(DETAIL)) == made
    assert len(client.search_runs([client.get_run(made).info.experiment_id])) == 1
    assert len(curve(client, made, "eval/accuracy")) == 3


def test_a_run_that_is_followed_ends_there_too(client: Any, uri: str) -> None:
    def states() -> Iterator[Tracked]:
        yield tracked(RUNNING)
        (found,) = client.search_runs([client.get_experiment_by_name("study").experiment_id])
        assert found.info.status == "RUNNING"
        assert curve(client, found.info.run_id, "train/loss") == [(1, 2.0, 105_000)]
        assert client.list_artifacts(found.info.run_id) == []
        yield tracked(DETAIL)

    made = to_mlflow(states(), _artifacts, experiment="study", tracking_uri=uri)
    assert client.get_run(made).info.status == "FINISHED"
    assert [step for step, _, _ in curve(client, made, "train/loss")] == [1, 2]


def test_a_run_that_was_left_is_brought_up_to_date(client: Any, uri: str) -> None:
    made = sent(uri, tracked(RUNNING))
    assert client.get_run(made).info.status == "RUNNING"
    assert sent(uri, tracked(DETAIL)) == made
    assert [step for step, _, _ in curve(client, made, "eval/accuracy")] == [0, 1, 2]
    assert client.get_run(made).data.tags["atoll.status"] == "finished"


@pytest.mark.parametrize(("status", "shown"), [("failed", "FAILED"), ("cancelled", "KILLED")])
def test_how_it_ended(client: Any, uri: str, status: str, shown: str) -> None:
    ended = tracked(replace(DETAIL, run=replace(DETAIL.run, status=status)))
    assert client.get_run(sent(uri, ended)).info.status == shown


def test_runs_that_are_followed_at_the_same_time_share_a_new_store(client: Any, uri: str) -> None:
    states = [tracked(replace(DETAIL, run=replace(DETAIL.run, run=f"rabc{number}"))) for number in range(4)]
    new = uri.replace("mlflow.db", "new.db")
    with ThreadPoolExecutor(len(states)) as pool:
        made = list(pool.map(lambda state: sent(new, state), states))
    client = type(client)(new)
    (experiment,) = {client.get_run(one).info.experiment_id for one in made}
    assert {one.data.tags["atoll.run"] for one in client.search_runs([experiment])} == {one.run for one in states}


def test_hostile_names_are_taken(client: Any, uri: str) -> None:
    made = client.get_run(sent(uri, tracked(hostile().detail)))
    assert sorted(made.data.metrics.values())[:2] == [0.5, 1.0]
    assert all(name.isprintable() for name in made.data.metrics)


@pytest.mark.parametrize("name", [HOSTILE, "a(b)", "x" * 300, "../up", "/root", "a//b", "é", "a/./b", "x/", "x/."])
def test_names_that_mlflow_refuses_stay_apart(name: str) -> None:
    validation: Any = importlib.import_module("mlflow.utils.validation")
    found = mlflow_name(name)
    validation._validate_metric_name(found)
    assert len(found) <= MAX_NAME
    assert found != mlflow_name(f"{name}!")


def test_a_name_that_mlflow_takes_is_not_changed() -> None:
    assert mlflow_name("eval/accuracy at 0.5: top-1") == "eval/accuracy at 0.5: top-1"


def test_many_settings_and_metrics_go_in_batches(client: Any, uri: str) -> None:
    run = tracked(DETAIL)
    params = {f"training.p{number}": number for number in range(250)}
    points = tuple(replace(run.points[0], step=step) for step in range(2500))
    made = sent(uri, replace(run, params=params, points=points))
    assert len(client.get_run(made).data.params) == 250
    assert len(curve(client, made, run.points[0].name)) == 2500


def test_a_deleted_experiment_is_named(client: Any, uri: str) -> None:
    client.delete_experiment(client.create_experiment("gone"))
    with pytest.raises(BadInputError, match=r"experiment 'gone' is deleted\nWhat to do: restore it"):
        MlflowWriter("gone", uri, tracked(DETAIL))


def test_a_store_that_cannot_be_is_an_error_of_the_operator() -> None:
    with pytest.raises(OperatorError, match=r"MLflow: .*\nWhat to do: check --tracking-uri"):
        sent("nonsense://somewhere", tracked(DETAIL))


def test_a_database_that_is_none_is_an_error_of_the_operator(uri: str) -> None:
    Path(uri.removeprefix("sqlite:///")).write_text("text, not a database" * 100, encoding="utf-8")
    with pytest.raises(OperatorError, match=r"MLflow: .*file is not a database"):
        sent(uri, tracked(DETAIL))
    with pytest.raises(OperatorError, match=r"MLflow: .*/dev/null"):
        sent("sqlite:////dev/null/mlflow.db", tracked(DETAIL))


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.entities", None)
    with pytest.raises(ImportError, match=r'MLflow needs \S+: pip install .*"\.\[mlflow\]"'):
        sent("sqlite://", tracked(DETAIL))
