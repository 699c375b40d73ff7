"""A new study is written whole or not at all, and what is written belongs together."""

from __future__ import annotations

import errno
import json
import os
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from atoll.client import UsageError
from atoll.client._study import project
from atoll.client._study.frameworks import FRAMEWORKS, Framework
from atoll.client._study.project import name_of, texts_of, write_study
from atoll.client.cli import app
from atoll.client.cli.new import new
from atoll.formats.arrays import load
from tests.docs.commands import ROOT, check, typed_in
from tests.patience import WAIT_S

pytestmark = pytest.mark.slow

FILES = [
    "README.md",
    "initial.safetensors",
    "job.toml",
    "participant.py",
    "pytest.ini",
    "statistics.toml",
    "test_participant.py",
]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def made(folder: Path, *options: str, framework: str = "numpy") -> Result:
    return CliRunner().invoke(new, ["study", str(folder), "--framework", framework, *options])


def test_a_study_has_these_files_and_the_next_command_is_said(tmp_path: Path) -> None:
    result = made(tmp_path / "far" / "wards")
    assert result.exit_code == 0, result.output
    assert sorted(contents(tmp_path)) == [f"far/wards/{name}" for name in FILES]
    assert result.stdout.split() == [str(tmp_path / "far" / "wards" / name) for name in FILES]
    assert f"next: cd {tmp_path / 'far' / 'wards'}\n      atoll simulate job.toml" in result.stderr


def test_json_names_the_files(tmp_path: Path) -> None:
    found = json.loads(made(tmp_path / "wards", "--json").stdout)
    assert found == {
        "folder": str(tmp_path / "wards"),
        "framework": "numpy",
        "files": [str(tmp_path / "wards" / name) for name in FILES],
    }


def test_files_of_others_stay_and_a_study_joins_them(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2\n")
    assert made(tmp_path).exit_code == 0
    assert sorted(contents(tmp_path)) == sorted([*FILES, "data.csv"])


@pytest.mark.parametrize("name", ["README.md", "initial.safetensors", "test_participant.py"])
def test_no_file_is_written_over_and_then_none_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(UsageError, match=f"has {name} already, and files are never overwritten: choose another folder"):
        write_study(tmp_path, FRAMEWORKS["numpy"])
    assert contents(tmp_path) == {name: b"precious"}


def test_a_link_that_leads_nowhere_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "job.toml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"has job\.toml already"):
        write_study(tmp_path, FRAMEWORKS["numpy"])
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


def test_a_file_that_comes_meanwhile_stays_and_the_others_go_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = project._fill

    def raced(made: Path, texts: Mapping[str, str], framework: Framework) -> None:
        fill(made, texts, framework)
        (tmp_path / "participant.py").write_text("precious")

    monkeypatch.setattr(project, "_fill", raced)
    with pytest.raises(UsageError, match=r"cannot be written: File exists"):
        write_study(tmp_path, FRAMEWORKS["numpy"])
    assert contents(tmp_path) == {"participant.py": b"precious"}


def test_the_files_need_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders shared with other systems, such as exFAT, SMB and those of some containers, have no hard links."""

    def refused(*_: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    write_study(tmp_path / "wards", FRAMEWORKS["numpy"])
    assert sorted(contents(tmp_path / "wards")) == FILES


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "wards").write_text("x")
    with pytest.raises(UsageError, match="is a file: choose another name"):
        write_study(tmp_path / "wards", FRAMEWORKS["numpy"])
    with pytest.raises(UsageError, match=r"cannot be written: .*: choose another folder"):
        write_study(tmp_path / "wards" / "inner", FRAMEWORKS["numpy"])


@pytest.mark.parametrize("name", ["ward 7", "-ward", "wärd", "w" * 51, '"; x = "'])
def test_a_folder_whose_name_is_no_jobs_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a study: name the folder with 1 to 50 letters"):
        write_study(tmp_path / name, FRAMEWORKS["numpy"])
    assert list(tmp_path.iterdir()) == []


def test_the_folder_that_one_is_in_has_a_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wards").mkdir()
    monkeypatch.chdir(tmp_path / "wards")
    assert name_of(Path()) == "wards"
    write_study(Path(), FRAMEWORKS["numpy"])
    assert sorted(contents(tmp_path / "wards")) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["wards"]


def test_what_a_participant_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.client.cli.new.find_spec", lambda name: None if name == "torch" else name)
    result = made(tmp_path / "wards", framework="torch")
    assert result.exit_code == 0
    assert 'participant.py needs torch: pip install -c constraints.txt -e ".[demo,torch]"' in result.stderr


def test_an_unknown_framework_is_refused_with_those_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run_cli(["new", "study", str(tmp_path / "wards"), "--framework", "jax"]) == 2
    assert "'jax' is not one of 'numpy', 'sklearn', 'torch'" in capsys.readouterr().err


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_place_is_filled_and_the_files_parse(name: str, tmp_path: Path) -> None:
    chosen = FRAMEWORKS[name]
    texts = texts_of("wards", chosen)
    assert [file for file, text in texts.items() if "{{" in text] == []
    asked = tomllib.loads(texts["statistics.toml"])
    assert asked["statistics"] == {"numeric": list(chosen.columns), "categories": {"label": list(chosen.labels)}}
    job = tomllib.loads(texts["job.toml"])
    assert (job["job"]["name"], asked["job"]["name"]) == ("wards", "wards statistics")
    page = tmp_path / "README.md"
    page.write_text(texts["README.md"])
    typed = typed_in(page)
    assert len(typed) >= 8
    for command in typed:
        check(command)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_participant_is_linted_as_the_examples_are(name: str, tmp_path: Path) -> None:
    write_study(tmp_path / "wards", FRAMEWORKS[name])
    settings = ["--config", str(ROOT / "pyproject.toml")]
    ruff = [sys.executable, "-m", "ruff"]
    exceptions = ["--config", "lint.per-file-ignores = {'test_*' = ['D', 'S101'], '*' = ['INP001']}"]
    known = ["--config", "lint.isort.known-first-party = ['atoll', 'participant']"]
    for command in (["check", *settings, *exceptions, *known], ["format", "--check", *settings]):
        done = subprocess.run(
            [*ruff, *command, "."], cwd=tmp_path / "wards", capture_output=True, text=True, check=False, timeout=WAIT_S
        )
        assert done.returncode == 0, done.stdout + done.stderr


def python(folder: Path, *arguments: str) -> None:
    """Run Python there as a reader would; it must succeed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


TESTED = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]


def assert_same_first_model(folder: Path, first: Mapping[str, Any]) -> None:
    """The participant has written a model of the same tensors."""
    again = load(folder / "initial.safetensors")
    assert {key: (one.shape, one.dtype) for key, one in again.items()} == {
        key: (one.shape, one.dtype) for key, one in first.items()
    }
    assert max(abs(one).max() for one in first.values()) <= 1


@pytest.mark.every_study
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_study_passes_its_own_test_and_writes_the_same_first_model_again(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "wards"
    write_study(folder, FRAMEWORKS[name])
    first = load(folder / "initial.safetensors")
    python(folder, *TESTED)
    (folder / "initial.safetensors").unlink()
    python(folder, "participant.py")
    assert_same_first_model(folder, first)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_study_passes_its_own_test_in_this_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "wards"
    write_study(folder, FRAMEWORKS[name])
    first = load(folder / "initial.safetensors")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "participant", raising=False)
    found = {key: test for key, test in runpy.run_path("test_participant.py").items() if key.startswith("test_")}
    sys.modules.pop("participant")
    assert len(found) == 3
    for test in found.values():
        test()
    (folder / "initial.safetensors").unlink()
    runpy.run_path("participant.py", run_name="__main__")
    assert_same_first_model(folder, first)


def test_its_tests_pass_in_a_folder_of_a_project_with_settings_of_its_own(tmp_path: Path) -> None:
    settings = '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib --strict-config"\nof_a_plugin = "x"\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    write_study(tmp_path / "wards", FRAMEWORKS["numpy"])
    python(tmp_path / "wards", *TESTED)
