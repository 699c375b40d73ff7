"""Quote other parties' text for YAML and Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from atoll.text.printable import printable

_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#|!~$&:@^])")
_WITHOUT_POINT = re.compile(r"^(-?\d+)(e[+-]\d+)$")
"""Floats such as ``1e-05``, which YAML 1.1 and PyYAML read as strings, because they need a decimal point."""
_BARE_LINK = re.compile(r"(?i)\b(www)\.")


def quoted(value: object) -> str:
    """A text, number or truth value for YAML: a JSON string, which is a double-quoted scalar (YAML 1.2, 5.7)."""
    if isinstance(value, float):
        return _WITHOUT_POINT.sub(r"\1.0\2", repr(value))
    return json.dumps(printable(value) if isinstance(value, str) else value, ensure_ascii=False)


def plain(text: str) -> str:
    """Text for a paragraph or a table cell, escaped so that nothing is markup, a link or HTML (GFM 2.4, 6.9)."""
    return _BARE_LINK.sub(r"\1\\.", _SPECIAL.sub(r"\\\1", printable(text)))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A GFM table; headings ending in ``>`` mark columns of numbers. The cells are ``plain`` already."""
    titles = [heading.removesuffix(">") for heading in headings]
    rule = ["---:" if heading.endswith(">") else "---" for heading in headings]
    return "\n".join(f"| {' | '.join(line)} |" for line in (titles, rule, *rows)) + "\n"
