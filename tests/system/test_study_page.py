"""docs/study.md: its commands run in order over a server and three sites, and give the figures that it shows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from atoll.formats.arrays import load
from atoll.operator import Operator
from tests.docs.commands import ROOT
from tests.system.processes import nursery
from tests.system.servers import serving
from tests.system.studies import Page, shell

pytestmark = pytest.mark.system

TEXT = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
SECTIONS = ("## Begin", "## Simulate", "## Deploy", "## Look at", "## Train and", "## Report and")
SERVER = "atoll server start --data federation\n"
SHOWN = re.findall(r"^```text\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
MOST_COMMANDS = 8
REPEATED = re.compile(r"^(?: +\d+ +(?:train|evaluate) |mean \w+ |label )")
"""Lines of the page that do not depend on the ids of participants, nor on the machine's speed."""


@pytest.mark.every_study
def test_its_commands_give_its_figures(tmp_path: Path) -> None:
    page = Page(TEXT)
    blocks = [block for section in SECTIONS for block in page.blocks(section)]
    assert blocks.count(SERVER) == 1
    script = "".join(block for block in blocks if block != SERVER)
    with nursery(tmp_path / "wards") as processes, serving(processes, "federation") as server:
        printed = shell(script, tmp_path)
        with Operator.connect(data=server.data) as operator:
            plain, scaled = (operator.run(name).history().metric("eval/loss") for name in ("plain", "scaled"))
    lines = {line.rstrip() for line in printed.splitlines()}
    wanted = [line for text in SHOWN for line in text.splitlines() if REPEATED.match(line)]
    assert len(wanted) >= 8
    assert [line for line in wanted if line not in lines] == []
    assert abs(plain[-1] - 0.209) < 0.02
    assert abs(scaled[-1] - 0.148) < 0.02
    assert_complete(tmp_path / "wards")


def assert_complete(folder: Path) -> None:
    """The model, the report and the export are there, and the files that the page lists."""
    assert SHOWN[0].split() == [
        f"wards/{name}" for name in sorted(path.name for path in folder.iterdir() if made(path))
    ]
    assert load(folder / "model.safetensors")["coef"].shape == (1, 10)
    assert "scaling" in tomllib.loads((folder / "job.toml").read_text())["training"]
    assert (folder / "report.html").stat().st_size > 10_000
    exported = load(folder / "wards-model" / "model.safetensors")
    assert np.abs(exported["coef"]).max() > 0.1


def made(path: Path) -> bool:
    """Whether a file of the study is one that ``atoll new study`` wrote."""
    return path.suffix in {".ini", ".md", ".py", ".toml"} or path.name == "initial.safetensors"


@pytest.mark.every_study
def test_eight_commands_lead_to_a_model_over_four_processes(tmp_path: Path) -> None:
    """``tests/benchmarks/test_study.py`` types the same commands into a terminal."""
    (block,) = Page(TEXT).blocks("## In eight commands")
    commands = block.splitlines()
    assert len(commands) <= MOST_COMMANDS
    environment, install, *rest = commands
    assert environment.startswith("python3 -m venv")
    assert install == 'pip install -c constraints.txt -e ".[demo]"'
    assert f"{rest[1]}\n" == SERVER
    with nursery(tmp_path / "wards") as processes, serving(processes, "federation"):
        shell("\n".join([rest[0], *rest[2:]]), tmp_path)
    assert load(tmp_path / "wards" / "model.safetensors").keys() == {"coef", "intercept"}
