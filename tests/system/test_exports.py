"""A run of a real server in other tools: followed while it runs, and exported afterwards."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from huggingface_hub import ModelCard
from mlflow.tracking import MlflowClient
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from atoll.client.cli.app import atoll
from atoll.operator import Operator
from tests.system.conftest import Hire, Serve
from tests.system.operators import job_toml
from tests.system.processes import ATOLL, Nursery

pytestmark = pytest.mark.system

SIZE, BEST, ROUNDS = 2, 3, 5
ZEROS = {"w": np.zeros((4, 3), np.float32)}
JOB = job_toml(
    job={"name": "peaking", "rounds": ROUNDS},
    cohort={"size": SIZE, "quorum": SIZE},
    straggler={"report_window_s": 120, "retry_delay_s": 0.5},
    evaluation={"before_training": True, "final": True},
    retention={"best": "eval/score", "mode": "max"},
)
SCORES = [(version, -float(abs(version - BEST))) for version in range(ROUNDS + 1)]


def test_a_run_goes_to_every_tool(serve: Serve, hire: Hire, processes: Nursery, tmp_path: Path) -> None:
    server = serve("exported")
    run = server.operator.submit(JOB, ZEROS)
    data, store = ("--data", str(server.data)), f"sqlite:///{tmp_path}/mlflow.db"
    client = MlflowClient(store)
    experiment = client.create_experiment("study", (tmp_path / "artifacts").as_uri())
    board = (*ATOLL, "run", "tensorboard", run, "--logdir", str(tmp_path / "board"), "--follow", *data)
    tracking = (*ATOLL, "run", "mlflow", run, "--tracking-uri", store, "--experiment", "study", "--json", *data)
    following = [processes.start(board, "board"), processes.start((*tracking, "--follow"), "mlflow")]
    hire(server).steady(SIZE, "Peaking")
    server.operator.finished(run)
    for one in following:
        assert one.wait() == 0, one.log

    events = EventAccumulator(str(tmp_path / "board" / f"peaking-{run}"))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("eval/score")] == SCORES
    (found,) = client.search_runs([experiment])
    measured = client.get_metric_history(found.info.run_id, "eval/score")
    assert [(one.step, one.value) for one in measured] == SCORES
    assert (found.info.status, found.data.params["cohort.size"]) == ("FINISHED", str(SIZE))

    again = CliRunner().invoke(atoll, tracking[1:])  # here, where MLflow is loaded
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["mlflow_run"] == found.info.run_id

    model, people = tmp_path / "model", tmp_path / "people.csv"
    for name, *command in (
        ("export", "export", run, "-o", str(model), "--best"),
        ("history", "history", run, "-o", str(people), "--by-participant"),
    ):
        done = processes.start((*ATOLL, "run", *command, *data), name)
        assert done.wait() == 0, done.log
    np.testing.assert_array_equal(load_file(model / "model.safetensors")["w"], ZEROS["w"] + BEST)
    card: Any = ModelCard.load(model / "README.md").data
    (results,) = card.to_dict()["model-index"][0]["results"]
    assert results["metrics"] == [{"type": "score", "value": 0.0, "name": "eval/score"}]
    assert sorted(one.path for one in client.list_artifacts(found.info.run_id)) == ["model", "report.html"]
    with people.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == SIZE * (ROUNDS + 1)
    assert {row["status"] for row in rows} == {"reported"}

    with Operator.connect(data=server.data) as operator:
        found_run = operator.run(run)
        assert found_run.ledger() is None
        *_, last = found_run.histories()
        assert last.rounds == found_run.history(complete=True).rounds
