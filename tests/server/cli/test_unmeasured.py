"""A job that decides by a metric that no round measured says so at its end."""

from __future__ import annotations

import pytest

from atoll.server.cli.run import run
from atoll.wire.v1 import control_pb2
from tests.server.cli.conftest import Fake, Invoke, a_round, summary

JOB = """
[job]
name = "p"
rounds = 2
[model]
initial = "init.safetensors"
[cohort]
size = 2
[retention]
best = "server/accuracy"
mode = "max"
[stop]
metric = "eval/los"
mode = "min"
patience = 3
"""
LINE = (
    "never measured: eval/los, which the job names as stop.metric, so it decided nothing; "
    "measured: eval/loss, server/accuracy"
)


def prepare(fake: Fake, status: control_pb2.RunStatus.ValueType, metric: str = "eval/loss") -> None:
    fake.control.rounds = [a_round(number, metrics={metric: 0.5, "server/accuracy": 0.5}) for number in range(2)]
    fake.control.job_toml = JOB
    fake.control.status = status
    fake.control.watches.append([control_pb2.WatchRunResponse(summary=summary(status, released=2), connected=2)])


@pytest.mark.parametrize("command", ["show", "watch"])
def test_the_commands_name_it_and_what_was_measured(fake: Fake, invoke: Invoke, command: str) -> None:
    prepare(fake, control_pb2.RUN_STATUS_FINISHED)
    result = invoke(run, command, "rabc")
    assert result.exit_code == 0, result.output
    assert result.output.count("never measured") == 1
    assert LINE in result.output


def test_a_metric_that_was_measured_is_not_named(fake: Fake, invoke: Invoke) -> None:
    prepare(fake, control_pb2.RUN_STATUS_FINISHED, "eval/los")
    assert "never measured" not in invoke(run, "show", "rabc").output


def test_a_running_run_shows_a_missing_metric_once_others_of_its_kind_were_measured(fake: Fake, invoke: Invoke) -> None:
    prepare(fake, control_pb2.RUN_STATUS_RUNNING)
    shown = invoke(run, "show", "rabc").output
    assert "not measured so far: eval/los, which the job names as stop.metric; measured: eval/loss" in shown
    assert "never measured" not in shown


def test_a_running_run_without_an_evaluation_shows_no_measured_metric(fake: Fake, invoke: Invoke) -> None:
    prepare(fake, control_pb2.RUN_STATUS_RUNNING, "train/loss")
    assert "measured so far" not in invoke(run, "show", "rabc").output


def test_watching_shows_it_while_the_run_is_in_work(fake: Fake, invoke: Invoke) -> None:
    prepare(fake, control_pb2.RUN_STATUS_RUNNING)
    running, ended = control_pb2.RUN_STATUS_RUNNING, control_pb2.RUN_STATUS_FINISHED
    fake.control.watches = [
        [
            control_pb2.WatchRunResponse(summary=summary(running, released=1), round=a_round(0), connected=2),
            control_pb2.WatchRunResponse(summary=summary(ended, released=2), connected=2),
        ]
    ]
    assert "not measured so far: eval/los, which the job names as stop.metric" in invoke(run, "watch", "rabc").output
