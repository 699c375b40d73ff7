"""Put the kept figures into the pages: ``python -m benchmarks.pages`` rewrites their tables.

A table stands between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``; NAME is that of a file of results.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import RESULTS

_DOCS = Path(__file__).parents[1] / "docs"
PAGES = (
    _DOCS / "performance.md",
    _DOCS / "reliability.md",
    _DOCS / "silo.md",
    _DOCS / "simulation.md",
    _DOCS / "datacenter" / "measurements.md",
    _DOCS / "datacenter" / "planning.md",
    _DOCS / "privacy.md",
    _DOCS / "privacy" / "accuracy.md",
    _DOCS / "privacy" / "noise.md",
)
_TABLE = re.compile(r"(<!-- figures: ([a-z0-9-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
_THOUSAND = 1000
_HEAD = "| what | value | beside | ratio | target | |\n|---|---|---|---|---|---|\n"


def with_tables(page: str, results: Path = RESULTS) -> str:
    """The page with every table updated from the results.

    Raises:
        FileNotFoundError: if a table names missing results.
    """
    return _TABLE.sub(lambda found: found[1] + _table(json.loads(_kept(results, found[2]))) + found[3], page)


def _kept(results: Path, name: str) -> str:
    return (results / f"{name}.json").read_text(encoding="utf-8")


def _table(figures: Sequence[dict[str, Any]]) -> str:
    of = figures[0]
    rows = "".join(map(_row, figures))
    said = f"`{of['command']}`, {of['machine']}, {of['date']}, commit {of['commit'].rstrip('+')}."
    return f"\n{said}\n\n{_HEAD}{rows}\n"


def _row(figure: dict[str, Any]) -> str:
    name = figure["name"].strip()
    if figure["name"].startswith(" "):
        name = f"&nbsp;&nbsp;{name}"
    unit, limit, ratio, target = figure["unit"], figure["limit"], figure["ratio"], figure["target"]
    beside = "" if limit is None else f"{_number(limit)} {unit}"
    verdict = "" if target is None else "met" if figure["ok"] else "**missed**"
    cells = [name, f"{_number(figure['value'])} {unit}", beside, _number(ratio), _number(target), verdict]
    return f"| {' | '.join(cells)} |\n"


def _number(value: float | None) -> str:
    """Three significant digits, or all digits before the decimal point."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= _THOUSAND else f"{value:.3g}"


def main() -> None:
    """Rewrite the tables of the pages."""
    argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__).parse_args()
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{page.name}: written", file=sys.stderr)


if __name__ == "__main__":
    main()
