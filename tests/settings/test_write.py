"""What ``to_toml`` writes is what ``tomllib`` reads."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, SkipValidation

from atoll.settings import Section, to_toml

TEXT = st.text(st.characters(codec="utf-8"))
VALUES = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), TEXT, st.lists(TEXT))


class Inner(Section):
    size: int = 1


class Root(Section):
    free: SkipValidation[Mapping[str, object]] = Field(default_factory=dict)
    inner: Inner | None = None


@given(st.dictionaries(TEXT, VALUES))
def test_values_and_keys_come_back(free: dict[str, object]) -> None:
    assert tomllib.loads(to_toml(Root(free=free))) == {"free": free}


def test_defaults_and_none_are_left_out() -> None:
    assert tomllib.loads(to_toml(Root(inner=Inner()))) == {"inner": {}}
    assert tomllib.loads(to_toml(Root(inner=None))) == {}


def test_what_toml_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes has no TOML form"):
        to_toml(Root(free={"key": b"x"}))
