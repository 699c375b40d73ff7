"""One identity for all machines of a silo, before they join."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from atoll.client._state.files import locked
from atoll.datacenter.cli.enrol import enrol
from atoll.datacenter.cli.join import join

SILO = Path(__file__).parents[3] / "examples" / "silo"


def test_a_token_that_is_none_is_refused_and_leaves_no_identity(tmp_path: Path) -> None:
    done = CliRunner().invoke(enrol, ["--join", "no token", "--state", str(tmp_path)])
    assert done.exit_code != 0
    assert not (tmp_path / "identity.json").exists()


def test_a_state_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    with locked(tmp_path):
        done = CliRunner().invoke(enrol, ["--join", "token", "--state", str(tmp_path)])
    assert "already works in" in str(done.exception)


def test_several_machines_do_not_spend_one_token(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [str(SILO / "join.toml"), "--nnodes", "2", "--meet", "localhost:29555", "--state", str(tmp_path), "--json"]
    done = CliRunner().invoke(join, [*words, "--join", "token", "--logs", str(tmp_path / "logs")])
    assert done.exit_code == 2
    answer = json.loads(done.stdout)
    assert answer["outcome"] == "failed"
    assert f"atoll silo enrol --join TOKEN --state {tmp_path}" in answer["error"]
    assert capfd.readouterr().err == ""
