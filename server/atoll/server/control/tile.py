"""Headline figures of a run, as the report and the console show them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """One headline figure."""

    label: str
    value: str
    note: str = ""
