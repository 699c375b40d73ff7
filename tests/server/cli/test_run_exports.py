"""``atoll run history``, ``export``, ``tensorboard`` and ``mlflow`` against a small server."""

from __future__ import annotations

import csv
import json
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from huggingface_hub import ModelCard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from atoll.formats.safetensors import read_header
from atoll.server.cli.run import run
from atoll.wire.v1 import control_pb2
from tests.patience import WAIT_S
from tests.server.cli.conftest import LAYOUT, Fake, Invoke, a_round, asked_for, json_of, summary

JOB = '[job]\nname = "digits"\nrounds = 2\n[cohort]\nsize = 2\n'


@pytest.fixture(autouse=True)
def _ended(fake: Fake) -> None:
    fake.control.status = control_pb2.RUN_STATUS_FINISHED
    fake.control.job_toml = JOB
    fake.control.rounds = [a_round(0), a_round(1)]
    for number, one in enumerate(fake.control.rounds):
        one.version = number


def test_history_writes_the_format_that_the_ending_names(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    result = invoke(run, "history", "rabc", "-o", str(path))
    assert (result.exit_code, result.stderr) == (0, f"fetching the rounds\n{path}: 2 rows, 24 columns\n")
    with path.open(encoding="utf-8", newline="") as file:
        assert [row["server/accuracy"] for row in csv.DictReader(file)] == ["0.5", "0.6"]
    found = json_of(invoke(run, "history", "rabc", "-o", str(tmp_path / "h.parquet"), "--by-participant", "--json"))
    assert (found["rows"], found["columns"]["participant"], found["columns"]["counted"]) == (2, "string", "bool")


def test_another_ending_is_refused_before_the_server_is_asked(invoke: Invoke, fake: Fake, tmp_path: Path) -> None:
    result = invoke(run, "history", "rabc", "-o", str(tmp_path / "history.xls"))
    assert result.exit_code == 2
    assert "'.xls'; known are .csv and .parquet" in result.stderr
    assert fake.control.asked == []


def test_export_writes_a_folder(invoke: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    result = invoke(run, "export", "rabc", "-o", str(folder))
    assert (result.exit_code, result.stderr) == (0, f"{folder}: model, model card and history of run rabc\n")
    assert read_header(folder / "model.safetensors")[0] == LAYOUT
    assert ModelCard.load(folder / "README.md").data.library_name == "atoll"
    again = invoke(run, "export", "rabc", "-o", str(folder))
    assert again.exit_code == 2
    assert "is not an empty folder" in again.stderr


def test_export_of_the_best_model_asks_for_that(invoke: Invoke, fake: Fake, tmp_path: Path) -> None:
    options = ("--best", "--metric", "server/accuracy", "--mode", "max", "--json")
    found = json_of(invoke(run, "export", "rabc", "-o", str(tmp_path / "model"), *options))
    assert found == {"folder": str(tmp_path / "model"), "run": "rabc"}
    assert asked_for(fake, control_pb2.GetRunModelRequest)[-1].round == 2
    alone = invoke(run, "export", "rabc", "-o", str(tmp_path / "other"), "--mode", "max")
    assert (alone.exit_code, "add --best" in alone.stderr) == (2, True)


def test_a_run_of_statistics_has_no_model_to_export(invoke: Invoke, fake: Fake, tmp_path: Path) -> None:
    fake.control.job_toml = '[job]\nname = "s"\n[cohort]\nsize = 2\n[statistics]\nnumeric = ["age"]\n'
    result = invoke(run, "export", "rabc", "-o", str(tmp_path / "model"))
    assert (result.exit_code, "`atoll run stats` writes its figures" in result.stderr) == (2, True)


def test_tensorboard_prints_the_folder_of_each_run(invoke: Invoke, tmp_path: Path) -> None:
    found = invoke(run, "tensorboard", "rabc", "--logdir", str(tmp_path))
    assert (found.exit_code, found.stdout) == (0, f"{tmp_path}/digits-rabc\n")
    assert f"tensorboard --logdir {tmp_path}" in found.stderr
    events = EventAccumulator(found.stdout.strip())
    events.Reload()
    assert [(one.step, round(one.value, 3)) for one in events.Scalars("server/accuracy")] == [(1, 0.5), (2, 0.6)]


def test_tensorboard_follows_until_the_end(invoke: Invoke, fake: Fake, tmp_path: Path) -> None:
    running, ended = summary(), summary(control_pb2.RUN_STATUS_FINISHED, 2)
    fake.control.watches = [
        [
            control_pb2.WatchRunResponse(summary=running, round=fake.control.rounds[0]),
            control_pb2.WatchRunResponse(summary=ended, round=fake.control.rounds[1]),
        ]
    ]
    found = json_of(invoke(run, "tensorboard", "rabc", "--logdir", str(tmp_path), "--follow", "--json"))
    assert found == {"run": "rabc", "folder": f"{tmp_path}/digits-rabc"}
    events = EventAccumulator(found["folder"])
    events.Reload()
    assert [one.step for one in events.Scalars("server/accuracy")] == [1, 2]


def test_ctrl_c_ends_following_at_once(invoke: Invoke, fake: Fake, tmp_path: Path) -> None:
    """The signal arrives while the run is followed, and the call to the server would not end on its own."""
    over = threading.Event()

    def changes() -> Iterator[control_pb2.WatchRunResponse]:
        yield control_pb2.WatchRunResponse(summary=summary(), round=fake.control.rounds[0])
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        over.wait(WAIT_S)

    watches: Any = [changes()]
    fake.control.watches = watches
    result = invoke(run, "tensorboard", "rabc", "--logdir", str(tmp_path), "--follow")
    over.set()
    assert (result.exit_code, "brings everything up to date" in result.stderr) == (130, True), result.output


def test_mlflow_prints_the_run_and_keeps_one(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    options = ("mlflow", "rabc", "--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db", "--experiment", "study")
    first = invoke(run, *options)
    assert first.exit_code == 0, first.output
    again = invoke(run, *options, "--json")
    line = next(line for line in again.stdout.splitlines() if line.startswith("{"))
    assert json.loads(line) == {"run": "rabc", "mlflow_run": first.stdout.strip(), "experiment": "study"}
    assert sorted(one.name for one in tmp_path.glob("mlruns/*/*/artifacts/*")) == ["model", "report.html"]


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [
        ("pyarrow", ("history", "rabc", "-o", "history.parquet"), "parquet"),
        ("mlflow.entities", ("mlflow", "rabc"), "mlflow"),
        ("tensorboard.compat.proto.event_pb2", ("tensorboard", "rabc", "--logdir", "x"), "tensorboard"),
    ],
)
def test_a_missing_library_is_a_line_that_names_the_extra(
    invoke: Invoke, module: str, command: tuple[str, ...], extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    result = invoke(run, *command)
    assert (result.exit_code, f'".[{extra}]"' in result.stderr) == (2, True), result.output


def test_help_lists_them() -> None:
    shown = CliRunner().invoke(run, ["--help"]).output
    assert all(f"\n  {name} " in shown for name in ("history", "export", "tensorboard", "mlflow", "watch"))
