from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.client import StateInUseError, UsageError
from atoll.client._state import files
from atoll.client._state.files import holder_of, locked, read_private, replace_file


def test_a_file_is_replaced_in_one_step_and_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in ("one", "two"):
        replace_file(path, text)
        assert read_private(path) == text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_file(path, "old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, "new")
    assert read_private(path) == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_reading_says_which_file(tmp_path: Path) -> None:
    assert read_private(tmp_path / "none") is None
    (tmp_path / "bad").write_bytes(b"\xff\xfe")
    for name in ("bad", "."):
        with pytest.raises(UsageError, match="cannot read"):
            read_private(tmp_path / name)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    with locked(tmp_path):
        code = (
            "import sys; from pathlib import Path; from atoll.client._state.files import holder_of, locked\n"
            "print(holder_of(Path(sys.argv[1])))\n"
            "with locked(Path(sys.argv[1])): pass"
        )
        child = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
        assert child.stdout.strip() == str(os.getpid())
        assert StateInUseError.__name__ in child.stderr
        assert f"process {os.getpid()} already works in" in child.stderr
    assert holder_of(tmp_path) is None
    with locked(tmp_path):
        pass


def test_a_look_at_who_works_there_keeps_nobody_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``atoll client status`` locks the file for an instant; a client that starts just then does not end for that."""
    with locked(tmp_path):
        pass
    with (tmp_path / "lock").open() as look:
        fcntl.flock(look, fcntl.LOCK_SH)

        def looked(state: Path) -> int | None:
            look.close()
            return holder_of(state)

        monkeypatch.setattr(files, "holder_of", looked)
        with locked(tmp_path):
            assert look.closed
            assert holder_of(tmp_path) == os.getpid()


def test_a_look_that_stands_still_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with locked(tmp_path):
        pass
    monkeypatch.setattr(files, "_LOOKS_S", 0.05)
    with (tmp_path / "lock").open() as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        with pytest.raises(StateInUseError, match=r"only looks at .* end that process"), locked(tmp_path):
            pass


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot use .*file"), locked(tmp_path / "file"):
        pass
