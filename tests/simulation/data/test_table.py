"""Who holds what: counts, text, JSON and the heat map."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from atoll.simulation import data
from atoll.simulation.data import PartitionError

LABELS = np.array(["cat", "dog", "cat", "emu", "dog", "cat"])
PARTS = (np.array([0, 2]), np.array([1, 3, 2]), np.array([], np.int64))
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(found.itertext()) for found in ET.fromstring(svg).iter(f"{SVG}text")]  # noqa: S314  # our own


def test_rows_of_each_class_are_counted() -> None:
    found = data.holdings(PARTS, LABELS)
    assert found.classes == ("cat", "dog", "emu")
    assert found.counts.tolist() == [[2, 0, 0], [1, 1, 1], [0, 0, 0]]
    assert found.sizes.tolist() == [2, 3, 0]
    assert found.shares[1].tolist() == pytest.approx([1 / 3] * 3)
    assert found.shares[2].tolist() == [0, 0, 0]
    assert (found.rows, found.held) == (6, 4)


def test_the_text_table() -> None:
    assert str(data.holdings(PARTS, LABELS)) == (
        "3 participants hold 4 of 6 rows\n"
        "participant  cat  dog  emu  rows\n"
        "0              2    ·    ·     2\n"
        "1              1    1    1     3\n"
        "2              ·    ·    ·     0\n"
        "all            3    1    1     5"
    )


def test_a_long_text_table_is_cut() -> None:
    lines = data.holdings(PARTS, LABELS).table(limit=1).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["participant", "0", "… 2 more", "all"]


def test_the_values_are_json() -> None:
    values = data.holdings(PARTS, LABELS).values()
    assert json.loads(json.dumps(values)) == {
        "classes": ["cat", "dog", "emu"],
        "participants": 3,
        "rows": 6,
        "held": 4,
        "sizes": [2, 3, 0],
        "counts": [[2, 0, 0], [1, 1, 1], [0, 0, 0]],
    }


def test_rows_that_the_labels_do_not_have_are_refused() -> None:
    with pytest.raises(PartitionError, match="participant 0 holds row 6, but there are 6 labels"):
        data.holdings((np.array([1, 6]),), LABELS)


def test_the_heat_map_has_a_cell_for_each_participant_and_class() -> None:
    svg = data.holdings(PARTS, LABELS).heat_map()
    root = ET.fromstring(svg)  # noqa: S314  # our own
    titles = [found.text for found in root.iter(f"{SVG}title")]
    assert len(titles) == 9
    assert titles[0] == "participant 0, cat: 2"
    shades = {found.findtext(f"{SVG}title"): found.get("fill-opacity") for found in root.iter(f"{SVG}rect")}
    assert [shades[title] for title in titles[3:6]] == ["0.50"] * 3
    assert [shades[title] for title in titles[6:]] == [None] * 3
    assert root.get("aria-label") == "rows of 3 classes held by 3 participants"
    assert "darkest: 2 rows" in texts(svg)


def test_cells_may_be_shaded_by_share() -> None:
    svg = data.holdings(PARTS, LABELS).heat_map(by="share")
    assert svg.count('fill-opacity="0.33"') == 3
    assert "darkest: all rows of the participant" in texts(svg)


def test_a_large_population_is_drawn_in_part() -> None:
    labels = np.arange(3000) % 50
    found = data.holdings(data.iid(3000, population=1000, seed=1), labels)
    svg = found.heat_map()
    shown = texts(svg)
    assert "participant 0" in shown
    assert "participant 999" in shown
    assert sum(text.startswith("participant") for text in shown) == 60
    assert any("60 of 1,000 participants; the 40 most frequent of 50 classes" in text for text in shown)
    assert len(svg) < 400_000


def test_names_of_classes_are_escaped() -> None:
    labels = np.array(["<script>alert(1)</script>", "a&b"])
    svg = data.holdings((np.array([0, 1]),), labels).heat_map()
    assert "<script>" not in svg
    ET.fromstring(svg)  # noqa: S314  # our own


def test_a_thumbnail_has_the_cells_alone() -> None:
    root = ET.fromstring(data.holdings(PARTS, LABELS).thumbnail())  # noqa: S314  # our own
    assert len(list(root.iter(f"{SVG}rect"))) == 9
    assert not list(root.iter(f"{SVG}text"))


def test_a_notebook_shows_the_heat_map() -> None:
    found = data.holdings(PARTS, LABELS)
    assert found._repr_html_() == found.heat_map()


def test_parts_without_rows_are_drawn() -> None:
    ET.fromstring(data.holdings(PARTS[2:], LABELS).heat_map())  # noqa: S314  # our own
