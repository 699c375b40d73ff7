"""One measured figure beside its limit, and the table that people read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A value with the limit or baseline that was measured in the same run.

    Attributes:
        name: what was measured.
        value: how much.
        unit: of value and limit.
        limit: the limit or plain baseline; None where a figure stands alone.
        ratio: value / limit; None without a limit.
        target: what the ratio (or without one the value) should reach or stay below; None if it is only stated.
        ok: whether the target is met.
        command: what makes this figure.
    """

    name: str
    value: float
    unit: str
    limit: float | None
    ratio: float | None
    target: float | None
    ok: bool
    command: str


def table(figures: Sequence[Figure]) -> str:
    """The figures as aligned lines."""
    lines = []
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:6.2f} of its limit"
        verdict = "" if figure.target is None else f"  target {figure.target:g}: {'met' if figure.ok else 'MISSED'}"
        lines.append(f"{figure.name:<44}{figure.value:10.3f} {figure.unit:<12}{ratio}{verdict}")
    return "\n".join(lines)
