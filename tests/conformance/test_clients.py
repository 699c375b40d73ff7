"""Clients pass every scenario of the contract: ours, and one in Node that shares no code with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import node_client
from tests.conformance.__main__ import main
from tests.conformance.scenarios import SCENARIOS
from tests.patience import WAIT_S

HERE = Path(__file__).parent
ATOLL = str(Path(sys.executable).with_name("atoll"))

pytestmark = pytest.mark.system


def outcomes(capfd: pytest.CaptureFixture[str], *command: str) -> dict[str, str]:
    """The problem in each scenario, empty where there was none."""
    main(["--json", "--", *command])
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert "token" in lines[0]
    return {line["scenario"]: line["problem"] for line in lines[1:]}


def test_our_client_passes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = outcomes(
        capfd, ATOLL, "client", "start", str(HERE / "plus_one.py:PlusOne"), "--state", str(tmp_path / "state")
    )
    assert found == {scenario.name: "" for scenario in SCENARIOS}


@node_client.needed
def test_the_client_in_node_passes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = outcomes(capfd, *node_client.command("client.js", str(tmp_path / "state")))
    assert found == {scenario.name: "" for scenario in SCENARIOS}


@node_client.needed
def test_the_client_in_node_reads_the_vectors() -> None:
    done = subprocess.run(
        node_client.command("vectors.js"), capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_client_that_does_not_come_fails_and_nothing_more_is_played(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--wait", "0.1"]) == 1
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line.get("passed") for line in lines] == [None, False]
    assert "did not check in" in lines[1]["problem"]


def test_a_scenario_that_does_not_exist_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "nothing"]) == 2
    assert "no such scenario: nothing; there are enrolment, " in capfd.readouterr().err
