from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterable

import click
import grpc
import pytest
from click.testing import CliRunner

from atoll.client import NotPermittedError, UnreachableError, UsageError
from atoll.client.cli import app
from atoll.client.cli.app import atoll, exit_code_of, run_cli
from atoll.wire.errors import JoinTokenError


class Point(importlib.metadata.EntryPoint):
    """An entry point that cannot be loaded."""

    def load(self) -> object:
        raise ModuleNotFoundError("No module named 'sqlalchemy'", name="sqlalchemy")


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rooms that are not installed."""
    points = [Point("server", "atoll.server.cli:server", app.GROUP), Point("odd", "atoll.other:odd", app.GROUP)]

    def entry_points(*, group: str, name: str | None = None) -> Iterable[Point]:
        assert group == app.GROUP
        return [point for point in points if name in (None, point.name)]

    monkeypatch.setattr(app, "entry_points", entry_points)


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["--version"]) == 0
    assert f"atoll, version {importlib.metadata.version('atoll')}" in capsys.readouterr().out
    assert run_cli(["-h"]) == 0
    out = capsys.readouterr().out
    assert "client" in out
    assert "Exit codes" in out


def test_unknown_commands_and_options_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["nonsense"]) == 2
    assert run_cli(["client", "start"]) == 2
    assert "MODULE:CLASS" in capsys.readouterr().err


@pytest.mark.usefixtures("without_extras")
def test_a_command_whose_extra_is_missing_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["server", "start", "--port", "7400"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "`atoll server` needs 'sqlalchemy', which is not installed: pip install -c constraints.txt -e" in said
    assert '".[server]" in a checkout of Atoll' in said
    assert run_cli(["odd"]) == 2
    assert run_cli(["--help"]) == 0
    assert "Not installed: needs the extra server." in capsys.readouterr().out


class FailedCall(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__()
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code


class OtherRoomsError(Exception):
    exit_code = 5


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (JoinTokenError("x"), 2),
        (UnreachableError("x"), 3),
        (NotPermittedError("x"), 4),
        (OtherRoomsError("x"), 5),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (FailedCall(grpc.StatusCode.UNAVAILABLE), 3),
        (FailedCall(grpc.StatusCode.UNAUTHENTICATED), 4),
        (FailedCall(grpc.StatusCode.NOT_FOUND), 2),
        (FailedCall(grpc.StatusCode.ABORTED), 1),
        (ValueError("x"), None),
    ],
)
def test_exit_codes(error: BaseException, code: int | None) -> None:
    assert exit_code_of(error) == code


def test_typed_errors_become_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(**_: object) -> None:
        raise UsageError("the remedy is here")

    monkeypatch.setattr(atoll, "main", fail)
    assert run_cli([]) == 2
    assert capsys.readouterr().err == "atoll: the remedy is here\n"


def test_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(atoll, "main", fail)
    with pytest.raises(ZeroDivisionError):
        run_cli([])


def test_help_of_one_room_loads_no_other() -> None:
    code = (
        "import sys; from atoll.client.cli.app import run_cli; run_cli(['client', 'start', '--help']);"
        "print(sorted({'grpc', 'torch', 'atoll.server'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_completion_knows_the_commands() -> None:
    environment = {"COMP_WORDS": "atoll cl", "COMP_CWORD": "1", "_ATOLL_COMPLETE": "bash_complete"}
    result = CliRunner().invoke(atoll, env=environment, prog_name="atoll")
    assert "client" in result.output
