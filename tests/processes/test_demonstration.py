"""What the demonstrations share; whole demonstrations are tests/system/test_demo.py and test_silo_demo.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from atoll.processes import ChildFailedError, Processes, demonstration
from atoll.processes.demonstration import ATOLL, KeepError, start_participant, start_server, workplace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as found:
        yield found


def python_runs(code: str, patched: pytest.MonkeyPatch) -> None:
    """Make this code the ``atoll`` command."""
    patched.setattr(demonstration, "ATOLL", (ATOLL[0], "-c", code))


def test_the_workplace_goes_unless_it_is_kept(tmp_path: Path) -> None:
    with workplace(None, "atoll-test-") as folder:
        (folder / "x").touch()
    assert not folder.exists()
    with workplace(tmp_path / "kept", "") as folder:
        (folder / "x").touch()
    assert (folder / "x").exists()


def test_a_folder_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KeepError) as caught, workplace(tmp_path, ""):
        pass
    assert caught.value.args == (f"--keep {tmp_path} is not empty", "name a new directory")
    with pytest.raises(KeepError) as caught, workplace(tmp_path / "file", ""):
        pass
    assert caught.value.args == (f"--keep {tmp_path / 'file'} cannot be used: File exists",)


def test_a_server_that_ends_is_reported_with_its_log(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_runs("raise SystemExit('port in use')", monkeypatch)
    with pytest.raises(ChildFailedError, match="server ended with exit code 1") as caught:
        start_server(processes, tmp_path / "server", (), {})
    assert "port in use" in str(caught.value)


def test_a_server_that_never_serves_is_given_up(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_runs("import time; time.sleep(600)", monkeypatch)
    monkeypatch.setattr(demonstration, "READY_S", 0.3)
    with pytest.raises(ChildFailedError, match="does not serve after 0 s"):
        start_server(processes, tmp_path / "server", (), {})


def test_what_a_ready_server_says_is_read(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import os, sys, time\n"
        'os.write(int(sys.argv[-1]), b\'{"address": "h:1", "enrolment": "h:2", "operator": "/x/operator.json"}\\n\')\n'
        "time.sleep(600)"
    )
    python_runs(code, monkeypatch)
    ready = start_server(processes, tmp_path / "server", (), {})
    assert (ready.address, ready.enrolment, str(ready.operator)) == ("h:1", "h:2", "/x/operator.json")


def test_a_participant_gets_its_token_in_a_private_file(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_runs("import time; time.sleep(600)", monkeypatch)
    start_participant(processes, "client-0", ("client", "start"), tmp_path / "state", "atoll-join-1.x")
    token = tmp_path / "state" / "join-token"
    assert token.read_text() == "atoll-join-1.x"
    assert (token.stat().st_mode | token.parent.stat().st_mode) & 0o077 == 0
    (child,) = processes._children
    assert isinstance(child.process.args, list)
    assert child.process.args[-6:] == ["client", "start", "--join", f"@{token}", "--state", str(token.parent)]
