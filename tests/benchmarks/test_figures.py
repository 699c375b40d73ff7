import json
import re
from pathlib import Path

from benchmarks.figures import Figure, table, write

KEYS = {"name", "value", "unit", "limit", "ratio", "target", "ok", "command"}


def test_results_are_a_list_with_machine_date_and_commit(tmp_path: Path) -> None:
    write("case", [Figure.stated("a", 1.0, "s", "make bench")], tmp_path / "results")
    (entry,) = json.loads((tmp_path / "results" / "case.json").read_text())
    assert set(entry) == KEYS | {"machine", "date", "commit"}
    assert re.fullmatch(r"([0-9a-f]{12}\+?)?", entry["commit"])


def test_a_figure_is_judged_by_its_ratio_or_by_itself() -> None:
    assert Figure.within("a", 2.0, "s", "c", limit=2.0, target=1.3).ok
    assert not Figure.within("a", 2.7, "s", "c", limit=2.0, target=1.3).ok
    assert Figure.at_most("a", 2.0, "MB", 2.0, "c").ok
    assert not Figure.at_least("a", 19.0, "rounds/s", 20.0, "c").ok
    assert Figure.stated("a", 1.0, "s", "c", beside=4.0).ratio == 0.25
    near = [Figure.near("a", value, "s", "c", other=10.0, share=0.15).ok for value in (8.4, 8.6, 11.4, 11.6)]
    assert near == [False, True, True, False]


def test_the_table_tells_what_is_missed() -> None:
    lines = table([Figure.at_most("large", 3.0, "MB", 2.0, "c"), Figure.stated("small", 1.0, "s", "c")]).splitlines()
    assert "MISSED" in lines[0]
    assert "target" not in lines[1]


def test_a_limit_of_the_same_run_may_stand_beside_a_bound() -> None:
    figure = Figure.at_most("a", 3.0, "s", 4.0, "c", beside=1.5)
    assert (figure.ok, figure.limit, figure.ratio, figure.target) == (True, 1.5, 2.0, 4.0)
    assert Figure.at_least("a", 30.0, "rounds/s", 20.0, "c", beside=60.0).ratio == 0.5


def test_a_figure_beside_zero_has_no_ratio() -> None:
    assert table([Figure.stated("rounds", 2.0, "s", "run", beside=0.0)]).endswith("beside 0")
