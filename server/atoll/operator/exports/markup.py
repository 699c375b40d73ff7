"""Text of other parties in YAML and Markdown, where it must stay text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from atoll.text.printable import printable

_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#|!~$&:@^])")
_WITHOUT_POINT = re.compile(r"^(-?\d+)(e[+-]\d+)$")
"""Floats such as ``1e-05``, which YAML 1.1 and so PyYAML read as texts: theirs have a point (type ``float``)."""
_BARE_LINK = re.compile(r"(?i)\b(www)\.")


def quoted(value: object) -> str:
    """A text, number or truth value for YAML: a JSON string, which is a double-quoted scalar (YAML 1.2, 5.7)."""
    if isinstance(value, float):
        return _WITHOUT_POINT.sub(r"\1.0\2", repr(value))
    return json.dumps(printable(value) if isinstance(value, str) else value, ensure_ascii=False)


def plain(text: str) -> str:
    """Text for a paragraph or a cell of a table: nothing in it is markup, a link or HTML (GFM 2.4, 6.9)."""
    return _BARE_LINK.sub(r"\1\\.", _SPECIAL.sub(r"\\\1", printable(text)))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of GFM; headings that end in ``>`` are over numbers. The cells are ``plain`` already."""
    titles = [heading.removesuffix(">") for heading in headings]
    rule = ["---:" if heading.endswith(">") else "---" for heading in headings]
    return "\n".join(f"| {' | '.join(line)} |" for line in (titles, rule, *rows)) + "\n"
