import json
from pathlib import Path

import pytest

from benchmarks.figures import Figure, write
from benchmarks.pages import PAGES, with_tables


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_page_tells_the_kept_figures(path: Path) -> None:
    """After a benchmark: ``python -m benchmarks.pages``."""
    page = path.read_text(encoding="utf-8")
    assert page == with_tables(page)


def test_a_table_has_values_limits_and_verdicts(tmp_path: Path) -> None:
    figures = [
        Figure.within("a round", 4.5, "s", "bench x", limit=3.0, target=1.3),
        Figure.at_least("  rate", 20.0, "rounds/s", 10.0, "bench x"),
        Figure.stated("memory", 2158.4, "MB", "bench x"),
    ]
    write("x", figures, tmp_path)
    page = with_tables("before\n<!-- figures: x -->\nold\n<!-- end of figures -->\nafter\n", tmp_path)
    assert "| a round | 4.5 s | 3 s | 1.5 | 1.3 | **missed** |" in page
    assert "| &nbsp;&nbsp;rate | 20 rounds/s |  |  | 10 | met |" in page
    assert "| memory | 2,158 MB |  |  |  |  |" in page
    assert "old" not in page
    assert json.loads((tmp_path / "x.json").read_text())[0]["date"] in page
    assert page.endswith("after\n")


def test_results_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        with_tables("<!-- figures: y -->\n<!-- end of figures -->\n", tmp_path)
