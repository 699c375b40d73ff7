from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from atoll.operator import Operator, OperatorError
from atoll.server.cli.operator import operator
from atoll.server.cli.output import print_listed
from atoll.server.cli.project import project
from atoll.server.cli.run import run
from atoll.server.cli.server_audit import audit
from atoll.wire.v1 import control_pb2

CARDIO = control_pb2.ProjectSummary(
    project="cardio",
    created_at=1_700_000_000.0,
    created_by="admin",
    quota=control_pb2.ProjectQuota(runs=2, model_bytes=5_000_000_000),
    runs=1,
    participants=7,
    connected=4,
    model_bytes=1_250_000_000,
)


@pytest.fixture
def control(fake: Any) -> Any:
    fake.control.projects.append(CARDIO)
    return fake.control


def test_new_makes_a_project_with_quotas(control: Any, invoke: Callable[..., Result]) -> None:
    result = invoke(project, "new", "onco", "--runs", "2", "--stored-gb", "1.5")
    assert result.output.splitlines()[0] == "project onco is made, limited to 2 runs at once, 1.5 GB of models"
    (asked,) = control.asked
    assert (asked.project, asked.quota.runs, asked.quota.model_bytes) == ("onco", 2, 1_500_000_000)
    assert not asked.quota.HasField("participants")
    assert "allowed is a number from 0 on, or none" in invoke(project, "new", "x", "--runs", "many").output


def test_list_and_show(control: Any, invoke: Callable[..., Result]) -> None:
    del control
    lines = invoke(project, "list").stdout.splitlines()
    assert any("cardio" in line and "1 of 2" in line and "1.25 of 5" in line for line in lines), lines
    assert [one["project"] for one in json.loads(invoke(project, "list", "--json").stdout)] == ["default", "cardio"]
    shown = invoke(project, "show", "cardio").stdout
    assert "runs that have not ended: 1 of 2\nparticipants: 7, 4 connected\nmodels: 1.25 of 5 GB\n" in shown
    missing = invoke(project, "show", "none")
    assert missing.exit_code == 1
    assert "`atoll project list` lists them" in missing.output


def test_a_role_for_one_organisation_sees_no_figures_of_the_project(
    control: Any, invoke: Callable[..., Result]
) -> None:
    control.projects = [control_pb2.ProjectSummary(project="cardio", participants=3, connected=1)]
    shown = invoke(project, "show", "cardio").stdout
    assert "runs that have not ended: not shown\nparticipants: 3, 1 connected\nmodels: not shown\n" in shown
    (found,) = json.loads(invoke(project, "list", "--json").stdout)
    assert (found["runs"], found["model_bytes"], found["quota"]["runs"]) == (None, None, None)


def test_a_quota_changes_and_the_others_stay(control: Any, invoke: Callable[..., Result]) -> None:
    result = invoke(project, "quota", "cardio", "--runs", "none", "--participants", "100")
    assert result.output == "project cardio is limited to 100 participants, 5 GB of models\n"
    (asked,) = control.asked
    assert (asked.quota.HasField("runs"), asked.quota.participants) == (False, 100)
    assert invoke(project, "quota", "cardio").exit_code == 2


def test_close(invoke: Callable[..., Result]) -> None:
    assert invoke(project, "close", "cardio").output == "project cardio is closed; 2 unused join tokens voided\n"


def test_the_project_is_named_by_option_variable_or_choice(
    control: Any, invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert invoke(run, "list").exit_code == 0
    assert control.named == [], "none is named, so the server is not asked first"
    invoke(run, "list", "--project", "cardio")
    assert control.named.pop() == "cardio"
    assert "commands at" in invoke(project, "use", "cardio").output
    assert (tmp_path / "atoll" / "projects.json").exists()
    invoke(run, "list")
    assert control.named.pop() == "cardio"
    monkeypatch.setenv("ATOLL_PROJECT", "onco")
    invoke(run, "list")
    assert control.named.pop() == "onco"
    monkeypatch.delenv("ATOLL_PROJECT")
    assert "all your projects" in invoke(project, "use", "--none").output
    control.named.clear()
    invoke(run, "list")
    assert control.named == []
    assert invoke(project, "use", "none").exit_code == 1
    assert invoke(project, "use").exit_code == 2


def test_the_audit_log_is_verified_as_a_whole(invoke: Callable[..., Result]) -> None:
    assert invoke(audit, "--verify").exit_code == 0
    found = invoke(audit, "--verify", "--project", "cardio")
    assert found.exit_code == 4
    assert "leave --project and ATOLL_PROJECT out" in found.output


def test_a_server_without_projects_is_not_asked_for_one(control: Any, invoke: Callable[..., Result]) -> None:
    """It would apply the command to everything instead of one project."""
    control.without_projects = True
    result = invoke(run, "cancel", "rabc", "--project", "cardio")
    assert "has a version without projects" in result.output
    assert control.asked == []


def test_a_damaged_choice_of_project_is_reported(invoke: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "atoll").mkdir()
    (tmp_path / "atoll" / "projects.json").write_text("[1]")
    result = invoke(run, "list")
    assert result.exit_code == 2
    assert "atoll project use" in result.output


def test_a_role_in_a_project(control: Any, invoke: Callable[..., Result], tmp_path: Path) -> None:
    path = str(tmp_path / "d.json")
    made = invoke(operator, "new", "dora", "-o", path, "--project", "cardio", "--organisation", "north")
    assert made.exit_code == 0, made.output
    taken = invoke(operator, "role", "dora", "none", "--project", "cardio")
    assert taken.exit_code == 0
    assert "no role of its own in the project now; a role in all projects holds there" in taken.output
    new, role = control.asked
    assert (new.organisation, role.role) == ("north", control_pb2.OPERATOR_ROLE_UNSPECIFIED)
    assert control.named == ["cardio", "cardio"]


def test_from_python(fake: Any) -> None:
    with Operator.connect(fake.address, insecure=True, project="cardio") as there:
        assert there.project == "cardio"
        assert [one.name for one in (there.whoami(),)] == ["dora"]
        fake.control.without_projects = True
    with Operator.connect(fake.address, insecure=True, project="cardio") as there, pytest.raises(OperatorError):
        there.projects()


def test_a_list_names_the_project_where_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    rows = (("r1", "digits"), ("r2", "wards"))
    print_listed(("run", "name"), rows, ["cardio", "onco"], "none")
    assert [line.split() for line in capsys.readouterr().out.splitlines() if "r" in line] == [
        ["run", "name", "project"],
        ["r1", "digits", "cardio"],
        ["r2", "wards", "onco"],
    ]
    print_listed(("run", "name"), rows, ["cardio", "cardio"], "none")
    assert "project" not in capsys.readouterr().out
