"""Settings of PyTorch's allocator that ranks find in their environment."""

from __future__ import annotations

import os

import pytest

from atoll.datacenter.elastic.environment import ALLOCATOR_VARIABLES, grow_segments


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset all of the variables; changes of a test are undone."""
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_segments_grow() -> None:
    grow_segments()
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.parametrize("name", ALLOCATOR_VARIABLES)
def test_the_users_own_value_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "expandable_segments:False")
    grow_segments()
    assert {one: os.environ[one] for one in ALLOCATOR_VARIABLES if one in os.environ} == {
        name: "expandable_segments:False"
    }
