"""Headline figures of a run, for the report and the console."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """One headline figure."""

    label: str
    value: str
    note: str = ""
