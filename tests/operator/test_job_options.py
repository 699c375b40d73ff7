"""--set and --sweep: what they read, and what they refuse."""

from __future__ import annotations

import pytest

from atoll.operator.errors import BadInputError
from atoll.operator.job_options import changes_of, grid_of, points_of


def test_sweep_options_are_read_as_a_job_file_writes_values() -> None:
    options = ("a.b=0.5,1", "c=fedavg,fedadam", 'd=["x,y", "z"]', "e=true", "f = 2024-01-01x")
    assert grid_of(options) == {
        "a.b": [0.5, 1],
        "c": ["fedavg", "fedadam"],
        "d": ["x,y", "z"],
        "e": [True],
        "f": ["2024-01-01x"],
    }


@pytest.mark.parametrize("options", [("a.b",), ("=1",), ("a=",), ("a=1", "a=2")])
def test_sweep_options_that_cannot_be_read_are_named(options: tuple[str, ...]) -> None:
    with pytest.raises(BadInputError, match=f"--sweep {options[-1]!r}"):
        grid_of(options)


def test_a_value_that_is_set_may_be_any_value_of_a_job_file() -> None:
    options = ("a.b=0.5", "c=fedavg", 'd=["x,y", "z"]', 'e="x,y"')
    assert changes_of(options) == {"a.b": 0.5, "c": "fedavg", "d": ["x,y", "z"], "e": "x,y"}


@pytest.mark.parametrize(
    ("options", "words"),
    [(("a=1", "a=2"), "names a again"), (("a",), "no key or no value"), (("a=1,2",), "--sweep begins a run for each")],
)
def test_values_that_cannot_be_set_are_named(options: tuple[str, ...], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        changes_of(options)


def test_a_grid_has_a_point_for_each_combination() -> None:
    assert points_of({"a": 1}, {}) == [{"a": 1}]
    assert points_of({"a": 1}, {"b": [2, 3], "c": ["x"]}) == [{"a": 1, "b": 2, "c": "x"}, {"a": 1, "b": 3, "c": "x"}]
    with pytest.raises(BadInputError, match="--set and --sweep both give a"):
        points_of({"a": 1}, {"a": [2]})
