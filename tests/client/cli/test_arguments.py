from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Optional

import pytest

from atoll.client import UsageError
from atoll.client.cli.arguments import parsed, values_of


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("3", int, 3),
        ("3", float, 3.0),
        ("3", str, "3"),
        ("3", Any, 3),
        ("three", Any, "three"),
        ("true", bool, True),
        ("/data/x.csv", Path, Path("/data/x.csv")),
        ("[1, 2]", list[int], [1, 2]),
        ("[1, 2]", tuple[int, ...], (1, 2)),
        ('{"a": 1}', dict[str, int], {"a": 1}),
        ("null", int | None, None),
        ("7", int | None, 7),
        ("7", str | int, 7),
        ("seven", str | int, "seven"),
        ("small", Literal["small", "large"], "small"),
        ("2", Literal[1, 2], 2),
        ("7", Optional[int], 7),  # noqa: UP045 - as older code writes it
    ],
)
def test_a_text_becomes_what_the_annotation_says(text: str, annotation: object, value: object) -> None:
    found = parsed(text, annotation)
    assert (found, type(found)) == (value, type(value))


def made(shard: int, rate: float = 0.1, shuffle: bool = False, size: Literal["small", "large"] = "small") -> None:
    """The annotations of this module are strings, which are read as types."""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shard": "three"}, "--arg shard=three: 'three' is not a whole number (shard: int)"),
        ({"shard": "3.5"}, "'3.5' is not a whole number"),
        ({"shard": "1", "rate": "fast"}, "--arg rate=fast: 'fast' is not a number (rate: float)"),
        ({"shard": "1", "shuffle": "yes"}, "--arg shuffle=yes: 'yes' is not true or false (shuffle: bool)"),
        ({"shard": "1", "size": "huge"}, "'huge' is not one of small, large"),
        ({"rate": "1"}, "missing a required argument: 'shard'"),
        ({"shard": "1", "rat": "1"}, "unexpected keyword argument 'rat'"),
    ],
)
def test_another_type_is_refused_by_name_value_and_type(arguments: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        values_of("mine:made", made, arguments)
    assert words in str(caught.value)


def test_annotations_that_exist_for_type_checkers_alone_are_left_as_texts() -> None:
    def factory(rows: Unknown, shard: int) -> None:  # type: ignore[name-defined]  # noqa: F821 - that is the point
        del rows, shard

    assert values_of("mine:factory", factory, {"rows": "[1]", "shard": "3"}) == {"rows": [1], "shard": 3}
