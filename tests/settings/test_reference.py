"""Programs that write reference pages take a path on their command line only where one is meant."""

import subprocess
import sys
from pathlib import Path

import pytest

GENERATORS = (
    "atoll.server.jobs.reference",
    "atoll.server.process.reference",
    "atoll.datacenter.job.reference",
    "atoll.datacenter.parallel.pipeline.picture",
    "benchmarks.pages",
    "tests.docs.error_codes",
)
ROOT = Path(__file__).parents[2]


def play(module: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a generator in ``folder``, with this repository's modules."""
    command = [sys.executable, "-m", module, *arguments]
    paths = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=paths)


@pytest.mark.system
@pytest.mark.parametrize("module", GENERATORS)
def test_a_question_for_help_writes_nothing(module: str, tmp_path: Path) -> None:
    answer = play(module, tmp_path, "--help")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith(f"usage: python -m {module} ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
@pytest.mark.parametrize("module", GENERATORS)
def test_an_option_that_does_not_exist_is_an_error(module: str, tmp_path: Path) -> None:
    answer = play(module, tmp_path, "--everything")
    assert answer.returncode == 2
    assert "usage: python -m" in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_page_that_is_named_is_written(tmp_path: Path) -> None:
    answer = play("atoll.server.jobs.reference", tmp_path, "page.md")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert (tmp_path / "page.md").read_bytes() == (ROOT / "docs" / "job-reference.md").read_bytes()
