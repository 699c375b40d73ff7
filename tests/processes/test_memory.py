from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from atoll.processes.memory import memory_bytes


def test_without_a_limit_it_is_that_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_bytes((tmp_path / "memory.max", tmp_path / "none")) == psutil.virtual_memory().total


@pytest.mark.parametrize(("text", "expected"), [("1048576\n", 1 << 20), ("9223372036854771712\n", None)])
def test_a_container_has_no_more_than_its_limit(tmp_path: Path, text: str, expected: int | None) -> None:
    (tmp_path / "memory.max").write_text(text)
    assert memory_bytes((tmp_path / "memory.max",)) == (expected or psutil.virtual_memory().total)
