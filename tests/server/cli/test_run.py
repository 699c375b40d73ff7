from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.numpy import load_file

from atoll.server.cli.run import run
from atoll.server.jobs import parse_job
from atoll.server.jobs.reference import MINIMAL, PRIVATE
from atoll.wire.v1 import control_pb2
from tests.server.cli.conftest import a_round, asked_for, json_of, summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    Invoke = Callable[..., Result]


@pytest.fixture
def job(model_file: Path) -> Path:
    path = model_file.parent / "job.toml"
    path.write_text(MINIMAL)
    return path


def test_submit_sends_model_and_job(fake: Any, invoke: Invoke, job: Path, model_file: Path) -> None:
    result = invoke(run, "submit", str(job))
    assert (result.exit_code, result.stdout) == (0, "rabc\n")
    (asked,) = asked_for(fake, control_pb2.SubmitRunRequest)
    assert asked.job_toml == job.read_bytes()
    assert asked.file_name == "job.toml"
    assert [tensor.name for tensor in asked.layout.tensors] == ["w", "b"]
    assert model_file.read_bytes().endswith(fake.control.uploaded)
    assert len(fake.control.uploaded) == 1_200_012


def test_warnings_of_the_server_are_told_and_are_in_the_json(fake: Any, invoke: Invoke, job: Path) -> None:
    fake.control.warnings = ["noise will outweigh what the run learns"]
    result = invoke(run, "submit", str(job))
    assert (result.exit_code, result.stdout) == (0, "rabc\n")
    assert "warning: run rabc: noise will outweigh what the run learns" in result.stderr
    assert json_of(invoke(run, "submit", str(job), "--json"))["warnings"] == fake.control.warnings


def test_a_job_is_submitted_with_other_values(fake: Any, invoke: Invoke, job: Path) -> None:
    result = invoke(run, "submit", str(job), "--set", "training.lr=0.1", "--set", "job.rounds=7")
    assert result.exit_code == 0, result.output
    (asked,) = fake.control.asked
    sent = parse_job(asked.job_toml)
    assert (sent.job.rounds, sent.training["lr"]) == (7, 0.1)


def test_a_sweep_begins_a_run_for_each_combination(fake: Any, invoke: Invoke, job: Path) -> None:
    grid = ("--sweep", "optimiser.lr=0.01,0.1", "--sweep", "cohort.size=4,8", "--set", "job.rounds=3")
    result = invoke(run, "submit", str(job), *grid)
    assert result.exit_code == 0, result.output
    sent = [parse_job(asked.job_toml) for asked in fake.control.asked]
    assert [(one.optimiser.lr, one.cohort.size) for one in sent] == [(0.01, 4), (0.01, 8), (0.1, 4), (0.1, 8)]
    assert {one.job.rounds for one in sent} == {3}
    assert result.stdout.splitlines() == ["rabc"] * 4
    assert "atoll run compare rabc rabc rabc rabc -o comparison.html" in result.stderr


def test_no_run_of_a_sweep_begins_if_one_of_its_jobs_is_invalid(fake: Any, invoke: Invoke, job: Path) -> None:
    result = invoke(run, "submit", str(job), "--sweep", "cohort.size=4,0")
    assert result.exit_code == 2
    assert "cohort.size = 0" in result.stderr
    assert fake.control.asked == []
    assert invoke(run, "submit", str(job), "--sweep", "cohort.size=4,8", "--watch").exit_code == 2


def test_a_bad_job_is_refused_before_anything_is_sent(fake: Any, invoke: Invoke, job: Path) -> None:
    job.write_text(MINIMAL + "sise = 3\n")
    result = invoke(run, "submit", str(job))
    assert result.exit_code == 2
    assert 'job.toml:10: cohort.sise = 3: no such key; did you mean "size"?' in result.stderr
    assert not fake.control.uploaded


def test_a_missing_or_damaged_model_is_refused(invoke: Invoke, job: Path, model_file: Path) -> None:
    model_file.write_bytes(b"not a model at all")
    result = invoke(run, "submit", str(job))
    assert result.exit_code == 2
    assert "safetensors" in result.stderr
    model_file.unlink()
    assert invoke(run, "submit", str(job)).exit_code == 2


def test_what_the_server_refuses_is_told(invoke: Invoke, job: Path) -> None:
    job.write_text(MINIMAL + '[evaluation]\nserver = "unheard-of"\n')
    result = invoke(run, "submit", str(job))
    assert result.exit_code == 2
    assert "no such evaluator\nWhat to do: install it" in result.stderr


def test_list_and_show(invoke: Invoke) -> None:
    assert "1/2" in invoke(run, "list").stdout
    shown = invoke(run, "show", "latest", "--members").stdout
    assert "0.5000" in shown
    assert "1 timed out" in shown
    assert "too slow" in shown
    assert f"newest model {summary().model_blob}\n" in shown


def test_show_as_json_has_the_documented_keys(invoke: Invoke) -> None:
    found = json.loads(invoke(run, "show", "rabc", "--json").stdout)
    assert found["run"]["status"] == "running"
    assert found["rounds"][0]["members"][0]["detail"] == "too slow"
    assert found["job_toml"] == "[job]"


def test_an_unknown_run_fails(invoke: Invoke) -> None:
    result = invoke(run, "show", "rnope")
    assert result.exit_code == 1
    assert "there is no run 'rnope'" in result.stderr


def test_steering(invoke: Invoke) -> None:
    paused = invoke(run, "pause", "rabc")
    assert "it pauses when the round in progress has ended" in paused.stderr
    assert "cancelled" in invoke(run, "cancel", "rabc", "--reason", "enough").stdout
    resumed = invoke(run, "resume", "rabc")
    assert resumed.exit_code == 1
    assert "the run is not paused" in resumed.stderr


def test_extending(fake: Any, invoke: Invoke) -> None:
    assert invoke(run, "extend", "rabc", "--rounds", "20").stdout == "run rabc (digits) is running, 1 round released\n"
    (request,) = asked_for(fake, control_pb2.ExtendRunRequest)
    assert (request.run, request.rounds) == ("rabc", 20)
    assert "extended after 1 round\n" in invoke(run, "show", "rabc").stdout
    assert json.loads(invoke(run, "show", "rabc", "--json").stdout)["run"]["extended_after"] == [1]
    assert json.loads(invoke(run, "extend", "rabc", "--rounds", "1", "--json").stdout)["status"] == "running"


@pytest.mark.parametrize("rounds", ["0", "-1", "many", "5000000000"])
def test_a_number_of_rounds_that_cannot_be_is_refused_before_anything_is_asked(
    fake: Any, invoke: Invoke, rounds: str
) -> None:
    result = invoke(run, "extend", "rabc", "--rounds", rounds)
    assert result.exit_code == 2
    assert rounds in result.stderr
    assert not asked_for(fake, control_pb2.ExtendRunRequest)


def test_a_run_that_goes_on_is_not_extended(invoke: Invoke) -> None:
    result = invoke(run, "extend", "rbusy", "--rounds", "2")
    assert result.exit_code == 1
    assert "run rbusy is running\nWhat to do: wait for its end" in result.stderr


def test_an_extension_can_be_watched(fake: Any, invoke: Invoke) -> None:
    last = control_pb2.WatchRunResponse(summary=summary(control_pb2.RUN_STATUS_FINISHED, released=2))
    fake.control.watches.append([control_pb2.WatchRunResponse(summary=summary()), last])
    result = invoke(run, "extend", "rabc", "--rounds", "1", "--watch", "--json")
    assert result.exit_code == 0
    assert [json.loads(line)["run"]["status"] for line in result.stdout.splitlines()] == ["running", "finished"]


def test_delete_asks_first(fake: Any, invoke: Invoke) -> None:
    refused = invoke(run, "delete", "rabc", "rdef", answer="n\n")
    assert refused.exit_code == 2
    assert "Delete rabc, rdef permanently? [y/N]" in refused.stderr
    assert "nothing was deleted" in refused.stderr
    assert not asked_for(fake, control_pb2.DeleteRunRequest)
    assert invoke(run, "delete", "rabc", answer="y\n").stdout == "run rabc is deleted: 3 MB removed\n"


def test_several_runs_are_deleted_up_to_the_first_that_is_refused(invoke: Invoke) -> None:
    result = invoke(run, "delete", "rdef", "latest", "rdef", "rbusy", "rxyz", "--yes", "--json")
    assert result.exit_code == 1
    assert "run rbusy is running\nWhat to do: cancel it first" in result.stderr
    removed = {"kind": "models", "count": 2, "stored_bytes": 3_000_000}
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert found == [{"run": name, "removed": [{**removed, "run": name}]} for name in ("rdef", "rabc")]


@pytest.mark.parametrize("breaks", [[], [1, 0, 1]])
def test_model_fetches_and_goes_on_after_a_break(fake: Any, invoke: Invoke, tmp_path: Path, breaks: list[int]) -> None:
    fake.transfer.break_after = breaks
    path = tmp_path / "model.safetensors"
    result = invoke(run, "model", "rabc", "-o", str(path), "--round", "1")
    assert result.exit_code == 0, result.output
    assert load_file(path)["b"].tolist() == [300_000.0, 300_001.0, 300_002.0]
    assert asked_for(fake, control_pb2.GetRunModelRequest)[0].round == 1


def test_model_asks_for_the_newest_by_default(fake: Any, invoke: Invoke, tmp_path: Path) -> None:
    assert invoke(run, "model", "rabc", "-o", str(tmp_path / "m.safetensors")).exit_code == 0
    assert not asked_for(fake, control_pb2.GetRunModelRequest)[0].HasField("round")


def test_a_damaged_model_is_not_kept(fake: Any, invoke: Invoke, tmp_path: Path) -> None:
    fake.transfer.damage = True
    result = invoke(run, "model", "rabc", "-o", str(tmp_path / "m.safetensors"))
    assert result.exit_code == 1
    assert "damaged" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_never_gets_on_is_given_up(fake: Any, invoke: Invoke, tmp_path: Path) -> None:
    fake.transfer.break_after = [0] * 10
    assert invoke(run, "model", "rabc", "-o", str(tmp_path / "m.safetensors")).exit_code == 3


def test_report_is_one_page(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    assert invoke(run, "report", "rabc", "-o", str(path)).exit_code == 0
    assert path.read_text().startswith("<!doctype html>")


def test_compare_shows_a_table_and_writes_one_page(fake: Any, invoke: Invoke, tmp_path: Path) -> None:
    fake.control.job_toml = MINIMAL
    path = tmp_path / "comparison.html"
    shown = invoke(run, "compare", "rabc", "rabc", "-o", str(path))
    assert shown.exit_code == 0, shown.output
    assert [line.split()[:3] for line in shown.stdout.splitlines() if line.startswith("digits")] == [
        ["digits", "2", "0.5"]
    ]
    assert path.read_text().startswith("<!doctype html>")
    found = json_of(invoke(run, "compare", "rabc", "rabc", "--separate", "--json"))
    assert [row["accuracy"] for row in found["runs"]] == [0.5, 0.5]
    assert found["variants"][0]["metrics"]["accuracy"]["values"] == [0.5, 0.5]
    assert invoke(run, "compare", "rnone").exit_code == 1


def test_watch_ends_with_the_run_and_its_exit_code(fake: Any, invoke: Invoke) -> None:
    ended = control_pb2.RunSummary(run="rabc", status=control_pb2.RUN_STATUS_FAILED, reason="no quorum")
    fake.control.watches = [[control_pb2.WatchRunResponse(summary=ended)]]
    result = invoke(run, "watch", "rabc")
    assert result.exit_code == 5
    assert "run rabc failed: no quorum" in result.stderr
    assert "[1/2] round 1 released, 1 of 2 reported, 500 ms, accuracy 0.5000, 1 timed out" in result.stdout


def test_watch_tells_a_pause_with_its_reason_once(fake: Any, invoke: Invoke) -> None:
    paused = summary(control_pb2.RUN_STATUS_PAUSED, reason="no privacy left")
    ended = summary(control_pb2.RUN_STATUS_FINISHED)
    fake.control.watches = [[control_pb2.WatchRunResponse(summary=one) for one in (paused, paused, ended)]]
    assert invoke(run, "watch", "rabc").stderr.count("paused; no privacy left\n") == 1


def test_submit_and_watch_as_json_lines(fake: Any, invoke: Invoke, job: Path) -> None:
    ended = control_pb2.RunSummary(run="rabc", status=control_pb2.RUN_STATUS_FINISHED)
    fake.control.watches = [[control_pb2.WatchRunResponse(summary=ended, connected=3)]]
    result = invoke(run, "submit", str(job), "--watch", "--json")
    assert result.exit_code == 0
    first, second = map(json.loads, result.stdout.splitlines())
    assert first["run"] == "rabc"
    assert (second["run"]["status"], second["connected"], second["round"]) == ("finished", 3, None)


def test_a_run_may_be_named(fake: Any, invoke: Invoke) -> None:
    assert invoke(run, "show", summary().name).exit_code == 0
    assert [asked.run for asked in asked_for(fake, control_pb2.GetRunRequest)] == [summary().run]


def evaluated(participant: str, value: float) -> control_pb2.MemberSummary:
    return control_pb2.MemberSummary(
        participant=participant, organisation="lab", status="reported", metrics={"eval/auc": value, "eval/examples": 9}
    )


def test_evaluations_are_shown_by_participant(fake: Any, invoke: Invoke) -> None:
    fake.control.job_toml = MINIMAL
    fake.control.rounds = [a_round(0, members=[evaluated("pa", 0.9), evaluated("pb", 0.6)])]
    result = invoke(run, "show", "rabc", "--by-participant")
    assert result.exit_code == 0, result.output
    assert "eval/auc on each participant's own data" in result.stdout
    assert result.stdout.index("pb") < result.stdout.index("pa ")
    assert "0.7500" in result.stdout
    found = json_of(invoke(run, "show", "rabc", "--by-participant", "--json"))
    assert [(one["participant"], one["last"]) for one in found["participants"]] == [("pb", 0.6), ("pa", 0.9)]
    assert found["rounds"][0]["median"] == 0.75
    refused = invoke(run, "show", "rabc", "--by-participant", "--metric", "eval/loss")
    assert refused.exit_code == 2
    assert "evaluated metrics: eval/auc" in " ".join(refused.stderr.split())


def test_a_private_run_has_no_evaluations_by_participant(fake: Any, invoke: Invoke) -> None:
    fake.control.job_toml = PRIVATE
    result = invoke(run, "show", "rabc", "--by-participant")
    assert result.exit_code == 2
    assert "a private run has no evaluations by participant" in " ".join(result.stderr.split())
