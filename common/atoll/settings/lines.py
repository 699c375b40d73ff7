"""The line of a key in a TOML file: tomllib gives the place of a syntax error, but not that of a value."""

from __future__ import annotations

import re

_BARE = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_DOTTED = rf"{_BARE}(?:\s*\.\s*{_BARE})*"
_HEADER = re.compile(rf"\s*\[\s*({_DOTTED})\s*\]")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")
_PART = re.compile(_BARE)
_FENCES = ('"""', "'''")


def key_lines(text: str) -> dict[str, int]:
    """Dotted key → 1-based line, for tables and for keys outside inline tables and multi-line strings."""
    found: dict[str, int] = {}
    table: tuple[str, ...] = ()
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if fence:
            fence = "" if line.count(fence) % 2 else fence
            continue
        if header := _HEADER.match(line):
            table = _parts(header[1])
            found.setdefault(".".join(table), number)
        elif key := _KEY.match(line):
            found.setdefault(".".join((*table, *_parts(key[1]))), number)
            fence = next((mark for mark in _FENCES if line.count(mark) % 2), "")
    return found


def line_of(lines: dict[str, int], key: str) -> int | None:
    """The line of ``key``, or of the nearest table around it."""
    while key:
        if key in lines:
            return lines[key]
        key = key.rpartition(".")[0]
    return None


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))
