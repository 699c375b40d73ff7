"""Programs that write reference pages take a path on their command line only where one is meant."""

import runpy
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


@pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("module", GENERATORS)
def test_help_and_options_that_do_not_exist_write_nothing(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: some of the modules take seconds to load."""
    monkeypatch.chdir(tmp_path)

    def answer(option: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [module, option])
        with pytest.raises(SystemExit) as end:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    status, out, err = answer("--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"usage: python -m {module} ")
    status, _, err = answer("--everything")
    assert status == 2
    assert "usage: python -m" in err
    assert list(tmp_path.iterdir()) == []


def test_the_page_that_is_named_is_written(tmp_path: Path) -> None:
    answer = play("atoll.server.jobs.reference", tmp_path, "page.md")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert (tmp_path / "page.md").read_bytes() == (ROOT / "docs" / "job-reference.md").read_bytes()
