"""Forms that change something, over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.wire.v1 import control_pb2
from tests.console.browser import Answer, Browser
from tests.console.conftest import Watched
from tests.server.cli.conftest import BLOB, NOW, Fake, asked_for

TRAINING = """
[job]
name = "digits"
rounds = 3
[cohort]
size = 2
[model]
initial = "model.safetensors"
"""
STATISTICS = """
[job]
name = "ages"
[cohort]
size = 4
[statistics]
numeric = ["age"]
"""


def send(browser: Browser, path: str, **fields: str) -> Answer:
    return browser.post(path, {"form_token": browser.form_token(), **fields})


def test_a_running_run_can_be_paused_and_cancelled(browser: Browser) -> None:
    page = browser.get("/runs/rabc").text
    assert 'action="/runs/rabc/pause"' in page
    assert 'href="/runs/rabc/cancel"' in page
    assert "/resume" not in page


@pytest.mark.parametrize(
    ("actions", "offered"),
    [
        ((), set()),
        (("run.pause", "run.cancel"), {"/runs/rabc/pause", "/runs/rabc/cancel"}),
        (("run.submit",), {"/start?like=rabc", "/start"}),
    ],
)
def test_only_what_the_role_allows_is_offered(
    browser: Browser, control: Watched, actions: tuple[str, ...], offered: set[str]
) -> None:
    control.actions = actions
    page = browser.get("/runs/rabc").text
    every = {"/runs/rabc/pause", "/runs/rabc/cancel", "/start?like=rabc", "/start"}
    assert {path for path in every if f'"{path}"' in page} == offered


def test_a_paused_run_can_be_resumed(browser: Browser, control: Watched) -> None:
    control.status = control_pb2.RUN_STATUS_PAUSED
    page = browser.get("/runs/rabc").text
    assert 'action="/runs/rabc/resume"' in page
    assert "/pause" not in page


def test_a_run_that_has_ended_can_only_be_repeated(browser: Browser, control: Watched) -> None:
    control.status = control_pb2.RUN_STATUS_FINISHED
    page = browser.get("/runs/rabc").text
    assert "/pause" not in page
    assert "/cancel" not in page
    assert 'href="/start?like=rabc"' in page


@pytest.mark.parametrize("status", [control_pb2.RUN_STATUS_FINISHED, control_pb2.RUN_STATUS_CANCELLED])
def test_a_run_that_has_finished_or_was_cancelled_can_be_extended(
    browser: Browser, control: Watched, status: control_pb2.RunStatus.ValueType
) -> None:
    control.status, control.job_toml = status, TRAINING
    assert 'action="/runs/rabc/extend"' in browser.get("/runs/rabc").text
    answer = send(browser, "/runs/rabc/extend", rounds="7")
    assert (answer.status, answer.headers["location"]) == (303, "/runs/rabc?done=extend")
    (request,) = [one for one in control.asked if isinstance(one, control_pb2.ExtendRunRequest)]
    assert (request.run, request.rounds) == ("rabc", 7)
    page = browser.get(answer.headers["location"]).text
    assert "goes on from its newest model" in page
    assert "of 2, extended after 1 round" in page


@pytest.mark.parametrize("rounds", ["", "0", "-1", "ten", "1.5", "9" * 30])
def test_a_number_of_rounds_that_cannot_be_is_refused(browser: Browser, control: Watched, rounds: str) -> None:
    answer = send(browser, "/runs/rabc/extend", rounds=rounds)
    assert answer.status == 400
    assert "rounds = " in answer.text
    assert not [one for one in control.asked if isinstance(one, control_pb2.ExtendRunRequest)]


def test_runs_that_cannot_be_extended_offer_no_such_button(browser: Browser, control: Watched) -> None:
    for status, job in (
        (control_pb2.RUN_STATUS_FAILED, TRAINING),
        (control_pb2.RUN_STATUS_RUNNING, TRAINING),
        (control_pb2.RUN_STATUS_FINISHED, f"{TRAINING}[privacy]\npopulation = 'people'\n"),
        (control_pb2.RUN_STATUS_FINISHED, STATISTICS),
    ):
        control.status, control.job_toml = status, job
        assert "/extend" not in browser.get("/runs/rabc").text


def test_pausing_leads_back_to_the_run_and_says_what_comes(browser: Browser) -> None:
    answer = send(browser, "/runs/rabc/pause")
    assert (answer.status, answer.headers["location"]) == (303, "/runs/rabc?done=pause")
    assert "pauses when the round in progress has ended" in browser.get(answer.headers["location"]).text


def test_what_the_server_refuses_is_said(browser: Browser) -> None:
    answer = send(browser, "/runs/rabc/resume")
    assert answer.status == 404
    assert "the run is not paused" in answer.text


def test_cancelling_asks_first_and_passes_the_reason_on(browser: Browser, control: Watched) -> None:
    asked = browser.get("/runs/rabc/cancel").text
    assert "cannot be resumed" in asked
    assert 'action="/runs/rabc/cancel"' in asked
    assert control.cancelled == []
    answer = send(browser, "/runs/rabc/cancel", reason="wrong <data>")
    assert (answer.status, answer.headers["location"]) == (303, "/runs/rabc?done=cancel")
    assert control.cancelled == ["wrong <data>"]


@pytest.mark.parametrize("path", ["/runs/rabc/pause", "/runs/rabc/resume", "/runs/rabc/cancel", "/start"])
def test_no_action_without_the_sessions_token(browser: Browser, control: Watched, fake: Fake, path: str) -> None:
    before = len(fake.control.asked)
    assert browser.post(path, {"job": STATISTICS}).status == 403
    assert (control.cancelled, len(fake.control.asked)) == ([], before)


@pytest.mark.parametrize("path", ["/runs/rabc/pause", "/runs/rabc/resume", "/leave"])
def test_no_action_by_a_link(browser: Browser, path: str) -> None:
    assert browser.get(path).status == 405


def test_statistics_start_from_their_job_alone(browser: Browser, fake: Fake) -> None:
    answer = send(browser, "/start", job=STATISTICS.replace("\n", "\r\n"))
    assert (answer.status, answer.headers["location"]) == (303, "/runs/rabc?done=start")
    assert asked_for(fake, control_pb2.SubmitRunRequest)[0].job_toml.decode() == STATISTICS


def test_a_run_like_another_begins_with_its_model(browser: Browser, fake: Fake, control: Watched) -> None:
    control.job_toml = TRAINING
    page = browser.get("/start?like=rabc").text
    assert "name = &#34;digits&#34;" in page
    assert "the initial model of" in page
    assert send(browser, "/start", job=TRAINING, like="rabc", model="initial").status == 303
    wanted = asked_for(fake, control_pb2.GetRunModelRequest)[0]
    assert (wanted.HasField("round"), wanted.round) == (True, 0)
    assert control.uploaded == BLOB
    assert send(browser, "/start", job=TRAINING, like="rabc", model="newest").status == 303
    assert not asked_for(fake, control_pb2.GetRunModelRequest)[1].HasField("round")


def test_a_job_that_is_wrong_comes_back_with_what_to_do(browser: Browser, fake: Fake) -> None:
    job = STATISTICS.replace("size = 4", "size = -4 # <b>")
    answer = send(browser, "/start", job=job)
    assert answer.status == 400
    assert "cohort.size" in answer.text
    assert "size = -4 # &lt;b&gt;" in answer.text
    assert asked_for(fake, control_pb2.SubmitRunRequest) == []


def test_no_file_of_this_machine_is_read_for_a_job(browser: Browser, fake: Fake, tmp_path: Path) -> None:
    secret = tmp_path / "secret.safetensors"
    secret.write_text("secret", encoding="utf-8")
    answer = send(browser, "/start", job=TRAINING.replace("model.safetensors", str(secret)))
    assert answer.status == 400
    assert "there are no initial weights" in answer.text
    assert fake.control.uploaded == b""


def test_the_ledger_of_a_server_without_private_runs(browser: Browser) -> None:
    assert "No private run has begun" in browser.get("/privacy").text


def test_populations_have_limits_and_runs(browser: Browser, control: Watched) -> None:
    spending = control_pb2.RunSpending(run="rabc", name="digits", epsilon=1.23451, delta=1e-5, releases=7, first_at=NOW)
    control.populations = [
        control_pb2.PopulationSummary(
            population="wards/7", epsilon=1.23451, delta=1e-5, limit_epsilon=8, limit_delta=1e-5, left=6.76549,
            charges=7, runs=[spending], adjacency="add_remove", unit="participant", head="ab",
        )
    ]  # fmt: skip
    overview = browser.get("/privacy").text
    assert 'href="/privacy/wards/7"' in overview
    assert "1.235" in overview
    assert "6.765" in overview
    page = browser.get("/privacy/wards/7").text
    assert 'href="/runs/rabc/privacy"' in page
    assert "epsilon 8 at delta 1e-05, 6.765 left" in page


def test_a_damaged_ledger_is_loud(browser: Browser, control: Watched) -> None:
    control.populations = [control_pb2.PopulationSummary(population="wards", flaw="charge 3 was changed")]
    assert "charge 3 was changed" in browser.get("/privacy").text
    assert 'role="alert"' in browser.get("/privacy/wards").text
