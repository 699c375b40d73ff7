"""Numbers of torch's versions."""

from __future__ import annotations

import pytest

from atoll.datacenter.torch_version import TORCH, release


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("2.11.0", (2, 11)), ("2.13.0+cpu", (2, 13)), ("2.12.0a0+git12", (2, 12)), ("3.0", (3, 0))],
)
def test_major_and_minor_number(version: str, numbers: tuple[int, int]) -> None:
    assert release(version) == numbers


def test_the_installed_one_is_supported() -> None:
    """``pyproject.toml`` asks for 2.11."""
    assert TORCH >= (2, 11)
