"""Programs that write reference pages take a path on their command line only where one is meant."""

import json
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
TWICE = """
import contextlib, io, json, runpy, sys, warnings

warnings.simplefilter("ignore", RuntimeWarning)  # the second time runpy finds the module loaded
module, answers = sys.argv[1], []
for option in ("--help", "--everything"):
    out, err, sys.argv = io.StringIO(), io.StringIO(), [module, option]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        answers.append({"status": end.code or 0, "out": out.getvalue(), "err": err.getvalue()})
print(json.dumps(answers))
"""


def play(module: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a generator in ``folder``, with this repository's modules."""
    command = [sys.executable, "-m", module, *arguments]
    paths = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=paths)


@pytest.mark.system
@pytest.mark.parametrize("module", GENERATORS)
def test_help_and_options_that_do_not_exist_write_nothing(module: str, tmp_path: Path) -> None:
    """Both in one process, which some of the modules take seconds to load."""
    answer = subprocess.run(
        [sys.executable, "-c", TWICE, module],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert answer.returncode == 0, answer.stderr
    helped, refused = json.loads(answer.stdout)
    assert (helped["status"], helped["err"]) == (0, "")
    assert helped["out"].startswith(f"usage: python -m {module} ")
    assert refused["status"] == 2
    assert "usage: python -m" in refused["err"]
    assert list(tmp_path.iterdir()) == []


def test_the_page_that_is_named_is_written(tmp_path: Path) -> None:
    answer = play("atoll.server.jobs.reference", tmp_path, "page.md")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert (tmp_path / "page.md").read_bytes() == (ROOT / "docs" / "job-reference.md").read_bytes()
