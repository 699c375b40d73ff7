"""Statistics as shown by the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from atoll.operator.errors import BadInputError
from atoll.server.cli.stats import check_files, show_figures, stats
from atoll.server.cli.stats_tables import bars, category_rows, group_rows, numeric_columns, numeric_row
from atoll.statistics import FIELDS, CategoryFindings, Findings, GroupFindings, NumericErrors, NumericFindings, Quantile
from tests.server.cli.conftest import Fake, Invoke

AGE = NumericFindings(
    name="age",
    count=120,
    missing=3,
    resolution=2.0**-45,
    mean=61.25,
    variance=4.0,
    deviation=2.0,
    edges=(32.0, 48.0, 64.0),
    histogram=(40, 80),
    quantiles=(Quantile(0.0, None, None), Quantile(0.5, 60.0, 62.0)),
)
HIDDEN = NumericFindings("weight", None, None, None, None, None, None, (), (), (Quantile(0.5, None, None),))
FOUND = Findings(4, 123, (AGE, HIDDEN), (CategoryFindings("sex\x1b[2J", {"f": 100, "m": None}, 0, 23),))


def test_a_column_of_numbers_is_a_row() -> None:
    assert numeric_columns(FOUND)[:7] == ("column", "count>", "missing>", "mean>", "deviation>", "min>", "0.5>")
    assert numeric_row(AGE) == ("age", "120", "3", "61.25", "2", "-", "61", "▄█")


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (13.32421875, 13.40625, "13.37"),
        (74.875, 75.53125, "75.2"),
        (2.0, 2.0, "2"),
        (-1.0, 1.0, "0"),
        (1e9, 1e9 + 1, "1e+09"),
    ],
)
def test_a_quantile_has_the_digits_of_its_cell(low: float, high: float, shown: str) -> None:
    assert numeric_row(replace(AGE, quantiles=(Quantile(0.5, low, high),)))[5] == shown


def test_what_is_suppressed_is_a_dash() -> None:
    assert numeric_row(HIDDEN) == ("weight", "-", "-", "-", "-", "-", "")


def test_errors_stand_beside_their_figures(capsys: pytest.CaptureFixture[str]) -> None:
    errors = NumericErrors(count=11.3, missing=8.0, mean=0.85, variance=3.0, deviation=None, histogram=30.0)
    noised = replace(AGE, errors=errors)
    assert numeric_row(noised)[1:5] == ("120 ± 11", "3 ± 8", "61.25 ± 0.85", "2")
    assert numeric_row(noised)[-1] == "·█"  # 40 is less than two standard errors
    show_figures(replace(FOUND, numeric=(noised,), noise=8.0))
    written = capsys.readouterr()
    assert "123 ± 8 rows of 4 participants" in written.out
    assert "±: standard error of the noise" in written.err


def test_figures_of_labels_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    groups = (
        GroupFindings("level", "f\x1b[2J", 80, 60.0, 4.0, 2.0),
        GroupFindings("other", "", None, None, None, None),
    )
    found = replace(FOUND, numeric=(replace(AGE, groups=groups),))
    shown = list(group_rows(found))
    assert [row[2:] for row in shown] == [("80", "60", "2"), ("-", "-", "-")]
    assert shown[1][1] == "(other)"
    assert all(cell.isprintable() for row in shown for cell in row)
    show_figures(found)
    assert "label" in capsys.readouterr().out


def test_names_do_not_control_the_terminal() -> None:
    rows = list(category_rows(FOUND))
    shown = [row[1:] for row in rows]
    assert shown == [("f", "100", "81.3%"), ("m", "-", "-"), ("(other)", "0", "0.0%"), ("(missing)", "23", "18.7%")]
    assert all(row[0].isprintable() for row in rows)


@pytest.mark.parametrize(("counts", "shown"), [((), ""), ((None, 0, 1), "· █"), ((0, 0), "  "), ((1, 8), "▁█")])
def test_a_histogram_is_a_letter_a_cell(counts: tuple[int | None, ...], shown: str) -> None:
    assert bars(counts) == shown


def test_the_signs_of_suppressed_figures_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    dotted = replace(AGE, histogram=(40, None), quantiles=(Quantile(0.5, 60.0, 62.0),))
    show_figures(Findings(4, 123, (dotted,), ()))
    written = capsys.readouterr()
    assert "█·" in written.out
    assert "- or ·: suppressed (too few rows or participants), or not defined" in written.err


def test_files_of_figures_may_be_written_over_and_others_not(tmp_path: Path) -> None:
    figures, table = tmp_path / "overview.json", tmp_path / "overview.csv"
    check_files(figures, table)
    assert list(tmp_path.iterdir()) == [], "nothing is left before there are figures"
    FOUND.save(figures)
    table.write_text(",".join(FIELDS) + "\n", encoding="utf-8")
    check_files(figures, table)
    for path, content in ((tmp_path / "job.toml", b"[job]"), (tmp_path / "model", bytes(range(256)))):
        path.write_bytes(content)
        for files in ((path, None), (None, path)):
            with pytest.raises(BadInputError, match="exists and holds no figures of statistics"):
                check_files(*files)
        assert path.read_bytes() == content
    with pytest.raises(BadInputError, match="cannot be written: No such file or directory"):
        check_files(tmp_path / "gone" / "overview.json", None)


def test_they_are_checked_before_participants_are_asked(fake: Fake, invoke: Invoke, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('[job]\nname = "s"\n[cohort]\nsize = 3\n[statistics]\nnumeric = ["age"]\n')
    refused = invoke(stats, str(job), "-o", str(job))
    assert refused.exit_code == 2, refused.output
    assert "job.toml exists and holds no figures" in refused.output
    assert fake.control.asked == []
