"""No command is silent during slow work: its first line is printed before the slow part begins.

The slow part is a participant's module that waits until the test, which has read the line, ends the command.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from atoll.client._study.frameworks import FRAMEWORKS
from atoll.client._study.project import write_study
from tests.system.processes import ATOLL

pytestmark = pytest.mark.system

WAITS = 'with open("go", encoding="utf-8") as go:\n    go.read()\n'


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (("client", "start", "participant.py:Site", "--state", "site"), "loading participant.py:Site"),
        (
            ("simulate", "job.toml", "--participants", "participant.py:Site", "--population", "3"),
            "simulating wards",
        ),
        (
            ("simulate", "job.toml", "--participants", "participant.py:Site", "--population", "3", "--repeat", "2"),
            "simulating wards",
        ),
    ],
    ids=["client", "simulate", "sweep"],
)
def test_the_first_line_comes_before_the_participants_module_is_loaded(
    tmp_path: Path, arguments: tuple[str, ...], first: str
) -> None:
    study = tmp_path / "wards"
    write_study(study, FRAMEWORKS["numpy"])
    module = study / "participant.py"
    module.write_text(module.read_text(encoding="utf-8") + WAITS, encoding="utf-8")
    os.mkfifo(study / "go")
    command = [*ATOLL, *arguments]
    with subprocess.Popen(command, cwd=study, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        running.kill()
    assert line.rstrip().endswith(first)
