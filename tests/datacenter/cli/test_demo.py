"""The silo demonstration's command; the whole demonstration is tests/system/test_silo_demo.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

from atoll.datacenter.cli.demo import demo

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_with_files_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    result = CliRunner().invoke(demo, ["--keep", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.endswith(f"\nError: --keep {tmp_path} is not empty: name a new directory\n")
