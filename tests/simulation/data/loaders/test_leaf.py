"""LEAF's JSON: numbers and texts, one file and folders, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.simulation import data
from atoll.simulation.data import FormatError
from atoll.simulation.data.loaders import leaf

FEMNIST = {
    "users": ["f01", "f02"],
    "num_samples": [2, 1],
    "user_data": {"f02": {"x": [[0.5, 0.5]], "y": [61]}, "f01": {"x": [[0.0, 1.0], [1, 0]], "y": [3, 7]}},
}
SHAKESPEARE = {
    "users": ["ROMEO", "JULIET"],
    "num_samples": [1, 2],
    "hierarchies": ["R", "J"],
    "user_data": {"ROMEO": {"x": ["but soft"], "y": ["!"]}, "JULIET": {"x": ["o romeo", "deny thy"], "y": [",", " "]}},
}


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_numbers_are_read_user_by_user(tmp_path: Path) -> None:
    found = data.load_leaf(write(tmp_path / "all_data.json", FEMNIST))
    assert found.inputs.tolist() == [[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]]
    assert found.inputs.dtype == np.float32
    assert found.labels.tolist() == [3, 7, 61]
    assert found.labels.dtype == np.int64
    assert found.users is not None
    assert found.users.tolist() == ["f01", "f01", "f02"]
    assert [part.tolist() for part in data.natural_ids(found.users)] == [[0, 1], [2]]
    assert found.at(np.array([2])).users == ["f02"]


def test_texts_stay_texts(tmp_path: Path) -> None:
    found = data.load_leaf(write(tmp_path / "all_data.json", SHAKESPEARE))
    assert found.inputs.tolist() == ["but soft", "o romeo", "deny thy"]
    assert found.labels.tolist() == ["!", ",", " "]


def test_numbers_that_are_not_whole_stay_numbers(tmp_path: Path) -> None:
    content = {"users": ["a"], "user_data": {"a": {"x": [[1], [2]], "y": [0.5, 2]}}}
    assert data.load_leaf(write(tmp_path / "a.json", content)).labels.tolist() == [0.5, 2.0]


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    third = {"users": ["f00"], "user_data": {"f00": {"x": [[9, 9]], "y": [0]}}}
    write(tmp_path / "data_1.json", FEMNIST)
    write(tmp_path / "data_0.json", third)
    found = data.load_leaf(tmp_path)
    assert found.labels.tolist() == [0, 3, 7, 61]


ONE: dict[str, Any] = {"users": ["a"], "user_data": {"a": {"x": [[1.0]], "y": [1]}}}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([1], "is not LEAF's JSON: it contains no object"),
        ({"users": ["a"]}, 'is not LEAF\'s JSON: it needs a list "users" and an object "user_data"'),
        (ONE | {"users": ["a", "b"]}, 'user \'b\' has no lists "x" and "y" of one length'),
        (ONE | {"num_samples": [2]}, "user 'a' has 1 rows, but num_samples says 2: it is damaged"),
        (ONE | {"num_samples": [1, 1]}, '"num_samples" does not have one number for each of 1 users'),
        (ONE | {"users": ["a", "a"]}, "user 'a' has data in two places: load training and test data apart"),
        (ONE | {"user_data": {"a": {"x": [[1.0]], "y": [1, 2]}}}, "user 'a' has no lists"),
        (ONE | {"user_data": {"a": {"x": [[1.0], [1.0, 2.0]], "y": [1, 2]}}}, "rows differ in shape"),
        (
            ONE | {"user_data": {"a": {"x": [{"b": 1}], "y": [1]}}},
            "rows hold object: give numbers or texts of one shape",
        ),
        ({"users": [], "user_data": {}}, "has no rows: give a LEAF file, or a folder of them"),
    ],
)
def test_what_is_not_leaf_is_refused(tmp_path: Path, content: object, says: str) -> None:
    path = write(tmp_path / "all_data.json", content)
    with pytest.raises(FormatError, match=re.escape(says)) as raised:
        data.load_leaf(path)
    assert str(path) in str(raised.value)


def test_what_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FormatError, match=r"has no \.json file: give the folder that LEAF wrote"):
        data.load_leaf(tmp_path)
    with pytest.raises(FormatError, match=r"missing\.json does not exist: give a LEAF file"):
        data.load_leaf(tmp_path / "missing.json")
    (tmp_path / "broken.json").write_text('{"users": [')
    with pytest.raises(FormatError, match="cannot be read as JSON"):
        data.load_leaf(tmp_path)
    monkeypatch.setattr(leaf, "MAX_FILE_BYTES", 5)
    with pytest.raises(FormatError, match="has 11 bytes, more than 5: split it"):
        data.load_leaf(tmp_path)
