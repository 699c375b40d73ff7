"""Contents of the pages, over HTTP, of a small control server."""

from __future__ import annotations

import grpc
import pytest

from atoll.wire.v1 import control_pb2
from tests.console.browser import Browser, Running, running
from tests.console.conftest import Watched
from tests.server.cli.conftest import NOW, Fake, a_round, asked_for

JOB = """
[job]
name = "digits"
rounds = 3
[cohort]
size = 2
[model]
initial = "model.safetensors"
"""


@pytest.fixture(autouse=True)
def job(control: Watched) -> None:
    control.job_toml = JOB


def member(name: str, status: str = "reported", detail: str = "") -> control_pb2.MemberSummary:
    report_s = 2.0 if status == "reported" else None
    return control_pb2.MemberSummary(
        participant=name, organisation=f"of-{name}", status=status, detail=detail, report_s=report_s, end_s=2.0
    )


def test_the_first_page_lists_the_runs(browser: Browser) -> None:
    page = browser.get("/")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert '<a href="/runs/rabc">digits</a>' in page.text
    assert "1/2" in page.text
    assert "version 9.9" in page.text
    assert 'data-events="/events/runs"' in page.text


def test_a_run_has_its_rounds_and_curves(browser: Browser, control: Watched) -> None:
    control.rounds = [a_round(number, version=number) for number in range(3)]
    page = browser.get("/runs/rabc").text
    assert "<h1>digits" in page
    assert 'href="/runs/rabc/rounds/3"' in page
    assert page.index("/rounds/3") < page.index("/rounds/1")
    assert "0.7000" in page
    assert 'aria-label="accuracy from 1 to 3 rounds behind the model: between 0.5 and 0.7, lastly 0.7"' in page
    assert 'data-events="/runs/rabc/events"' in page
    assert "initial = &#34;model.safetensors&#34;" in page


def test_a_run_says_who_did_not_count(browser: Browser, control: Watched) -> None:
    control.rounds = [a_round(0, members=[member("pa"), member("pb", "failed", "no data")])]
    page = browser.get("/runs/rabc").text
    assert '<a href="/participants/pb">of-pb</a>' in page
    assert "1 of 1 (never counted)" in page
    assert "no data" in page


def test_a_secret_draw_names_no_participant(browser: Browser, control: Watched) -> None:
    control.job_toml = "not a job of this version"
    control.rounds = [a_round(0, members=[member("pa"), member("pb", "failed", "no data")])]
    page = browser.get("/runs/rabc").text
    assert "of-pb" not in page
    assert "draw of this run is secret" in page
    assert 'href="/runs/rabc/privacy"' in page


def test_a_run_that_has_ended_is_not_followed(browser: Browser, control: Watched) -> None:
    control.status = control_pb2.RUN_STATUS_FINISHED
    assert "data-events" not in browser.get("/runs/rabc").text


def test_rounds_come_in_pages(browser: Browser, control: Watched) -> None:
    control.rounds = [a_round(number) for number in range(120)]
    first, last = browser.get("/runs/rabc").text, browser.get("/runs/rabc?page=3").text
    assert "page 1 of 3" in first
    assert "/rounds/120" in first
    assert "/rounds/70" not in first
    assert "/rounds/20" in last
    assert "/rounds/21" not in last
    assert 'href="/runs/rabc?page=2" rel="prev"' in last
    assert browser.get("/runs/rabc?page=nine").text.count("page 1 of 3") == 1


def test_a_page_that_is_loaded_again_asks_for_new_rounds_alone(browser: Browser, control: Watched, fake: Fake) -> None:
    control.rounds = [a_round(number) for number in range(5)]
    for _ in range(2):
        browser.get("/runs/rabc")
    asked = [(one.since, one.members) for one in asked_for(fake, control_pb2.GetRunRequest)]
    assert asked == [(0, False), (0, True), (4, False)]


def test_a_round_says_who_reported_and_why_others_did_not(browser: Browser, control: Watched) -> None:
    control.rounds = [a_round(0, members=[member("pa"), member("pb", "failed", "no data")], phases_s={"collect": 2.0})]
    page = browser.get("/runs/rabc/rounds/1").text
    assert "its task failed: no data" in page
    assert "of-pa" in page
    assert "1 of 2 reported" in page
    only = browser.get("/runs/rabc/rounds/1?status=failed").text
    assert "of-pa" not in only
    assert "of-pb" in only


def test_members_come_in_pages(browser: Browser, control: Watched) -> None:
    control.rounds = [a_round(0, members=[member(f"p{number:04d}") for number in range(250)])]
    assert "page 1 of 3" in browser.get("/runs/rabc/rounds/1").text
    assert browser.get("/runs/rabc/rounds/1?page=3").text.count('href="/participants/p0') == 50


def test_each_attempt_at_a_round_has_a_page(browser: Browser, control: Watched) -> None:
    control.rounds = [a_round(0, phase="abandoned", reason="too few"), a_round(0, attempt=1)]
    assert "Round 1.2" in browser.get("/runs/rabc/rounds/1").text
    assert (
        "Too few" in browser.get("/runs/rabc/rounds/1.1").text or "too few" in browser.get("/runs/rabc/rounds/1.1").text
    )


def test_participants_have_labels_and_states(browser: Browser, fake: Fake) -> None:
    page = browser.get("/participants").text
    assert "site=north" in page
    assert "revoked" in page
    browser.get("/participants?connected=yes&organisation=lab")
    asked = asked_for(fake, control_pb2.ListParticipantsRequest)[-1]
    assert (asked.connected, asked.organisation) == (True, "lab")


@pytest.mark.parametrize("path", ["/nothing", "/runs/rabc/rounds/9", "/runs/rabc/rounds/x", "/events/x", "/static/x"])
def test_what_is_not_there(browser: Browser, path: str) -> None:
    assert browser.get(path).status == 404


def test_the_servers_refusals_are_shown_with_what_to_do(browser: Browser) -> None:
    answer = browser.get("/runs/other")
    assert answer.status == 404
    assert "there is no run &#39;other&#39;" in answer.text
    assert "atoll run list" in answer.text


def test_the_log_has_its_newest_lines_from_a_level_on(browser: Browser, control: Watched) -> None:
    assert "No log line matches." in browser.get("/log").text
    control.log_lines = [
        control_pb2.LogLine(number=2, level=control_pb2.LOG_LEVEL_ERROR, message="disk is full", run="rabc"),
        control_pb2.LogLine(number=1, level=control_pb2.LOG_LEVEL_INFO, message="starting"),
    ]
    every, errors = browser.get("/log").text, browser.get("/log?level=error").text
    assert "disk is full" in every
    assert '<a class="id" href="/runs/rabc">' in every
    assert "starting" in every
    assert "disk is full" in errors
    assert "starting" not in errors


def test_a_server_that_is_away_is_said(browser: Browser, fake: Fake) -> None:
    fake.stop()
    answer = browser.get("/")
    assert answer.status == 503
    assert f"cannot reach the server at {fake.address}" in answer.text


def test_a_page_of_a_long_run_is_small(console: Running, control: Watched) -> None:
    members = [
        member(f"p{number:012d}", "failed" if number % 3 else "reported", "no data " * 9) for number in range(1000)
    ]
    values = {"server/accuracy": 0.5, "eval/accuracy": 0.5, "train/loss": 0.25}
    control.rounds = [
        a_round(number, metrics=values, version=number, cohort=1000, opened_at=NOW) for number in range(1000)
    ]
    control.rounds[-1].members.extend(members)
    browser = console.browser()
    for path in ("/runs/rabc", "/runs/rabc/rounds/1000", "/", "/participants"):
        answer = browser.get(path)
        assert answer.status == 200
        assert len(answer.text.encode()) < 500_000


def named(*names: str) -> list[control_pb2.ProjectSummary]:
    return [control_pb2.ProjectSummary(project=name, quota=control_pb2.ProjectQuota()) for name in names]


def choose(browser: Browser, project: str) -> int:
    return browser.post("/project", {"project": project, "form_token": browser.form_token()}).status


class TestProjects:
    def test_one_of_several_is_chosen_for_the_session(self, console: Running, control: Watched) -> None:
        control.projects = named("cardio", "onco")
        first, second = console.browser(), console.browser()
        assert '<option value="cardio">cardio</option>' in first.get("/").text
        assert "<th>project</th>" in first.get("/").text
        assert choose(first, "cardio") == 303
        control.named.clear()
        page = first.get("/").text
        assert '<option value="cardio" selected>cardio</option>' in page
        assert "<th>project</th>" not in page
        assert set(control.named) == {"cardio"}, "the server is asked about it"
        assert " selected" not in second.get("/").text, "another browser's choice is its own"
        assert choose(first, "none") == 400
        assert choose(first, "") == 303
        assert " selected" not in first.get("/").text

    def test_where_there_is_one_nothing_is_to_choose(self, browser: Browser) -> None:
        page = browser.get("/").text
        assert "<th>project</th>" not in page
        assert "Project <select" not in page

    def test_a_server_without_projects_has_nothing_to_choose(self, browser: Browser, control: Watched) -> None:
        control.projects_refused = grpc.StatusCode.UNIMPLEMENTED
        found = browser.get("/")
        assert found.status == 200
        assert "Project <select" not in found.text

    def test_another_error_of_the_list_is_reported(self, browser: Browser, control: Watched) -> None:
        control.projects_refused = grpc.StatusCode.DATA_LOSS
        found = browser.get("/")
        assert found.status == 404
        assert "the disk is full" in found.text

    def test_after_losing_its_role_an_operator_can_clear_the_selected_project(
        self, browser: Browser, control: Watched
    ) -> None:
        control.projects = named("cardio", "onco")
        token = browser.form_token()
        assert choose(browser, "cardio") == 303
        control.lost_project = "cardio"
        found = browser.get("/")
        assert found.status == 404
        assert "Clear the selected project" in found.text
        assert browser.post("/project", {"form_token": token}).status == 303
        assert browser.get("/").status == 200

    def test_an_operator_without_a_role_in_all_projects_sees_its_first_one(self, fake: Fake, control: Watched) -> None:
        control.projects = named("cardio", "onco")
        control.role = control_pb2.OPERATOR_ROLE_UNSPECIFIED
        control.server_role = control_pb2.OPERATOR_ROLE_UNSPECIFIED
        control.own_projects = ["cardio", "onco"]
        with running(fake.address) as console:
            browser = console.browser()
            page = browser.get("/").text
            assert '<option value="cardio" selected>cardio</option>' in page
            assert '<option value="">all</option>' not in page, "the server would not answer for all"
            refused = browser.post("/project", {"project": "", "form_token": browser.form_token()})
            assert (refused.status, "no role in all projects" in refused.text) == (400, True)
            assert choose(browser, "onco") == 303

    def test_all_are_offered_to_a_role_in_all(self, browser: Browser, control: Watched) -> None:
        control.projects = named("cardio", "onco")
        control.server_role = control_pb2.OPERATOR_ROLE_VIEWER
        assert '<option value="">all</option>' in browser.get("/").text
