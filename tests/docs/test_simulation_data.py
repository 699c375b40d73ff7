"""docs/simulation/data.md does what it says: its snippets run and print what it shows, its pictures are today's."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.simulation import data
from tests.docs.partition_pictures import FOLDER, pictures

PAGE = (FOLDER.parent / "data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
DEBIAN, LEAF = "/usr/share/datasets/fashion-mnist", "leaf/data/shakespeare/data/train"


def write_sets(folder: Path) -> None:
    """Small stand-ins for the data sets that the page reads from folders."""
    labels = np.arange(400, dtype=np.uint8) % 10
    for name, array in (("images-idx3", np.zeros((400, 2, 2), np.uint8)), ("labels-idx1", labels)):
        header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        (folder / f"train-{name}-ubyte").write_bytes(header + array.tobytes())
    users = {name: {"x": ["but soft"], "y": ["!"]} for name in ("ROMEO", "JULIET")}
    (folder / LEAF).mkdir(parents=True)
    (folder / LEAF / "all_data.json").write_text(json.dumps({"users": list(users), "user_data": users}))


def test_every_snippet_runs_and_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sets(tmp_path)
    names: dict[str, Any] = {}
    for language, block in BLOCKS:
        if language == "text":
            assert capsys.readouterr().out == block
        else:
            assert not capsys.readouterr().out, "the page does not show what was printed"
            exec(block.replace(DEBIAN, str(tmp_path)), names)  # noqa: S102  # our own page
    assert (tmp_path / "who-holds-what.svg").read_text() == dict(pictures())["who-holds-what.svg"]


def test_the_pictures_are_what_the_code_draws() -> None:
    """``python -m tests.docs.partition_pictures`` writes them again."""
    drawn = dict(pictures())
    assert {path.name for path in FOLDER.iterdir()} == drawn.keys()
    for name, picture in drawn.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == f"{picture}\n", name
        assert f"(data/{name})" in PAGE


def test_the_table_has_every_partitioner() -> None:
    returns_parts = {
        name for name in data.__all__ if getattr(getattr(data, name), "__annotations__", {}).get("return") == "Parts"
    }
    listed = set(re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE))
    assert returns_parts | {"drift"} <= listed
    assert all(hasattr(data, name) for name in listed)
