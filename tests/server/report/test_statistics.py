"""The report page of a run of statistics."""

from __future__ import annotations

from pathlib import Path

from atoll.simulation import Federation
from tests.simulation.test_statistics import JOB, Hospital


def test_the_page_has_the_figures_and_no_scripts(tmp_path: Path) -> None:
    result = Federation(Hospital, 4).run(JOB, strict=True)
    page = result.report(tmp_path / "report.html").read_text(encoding="utf-8")
    found = result.statistics()
    assert f"{found.rows} rows of 4 participants" in page
    assert f"{found.column('age').mean:.6g}" in page
    assert 'aria-label="histogram of age"' in page
    assert "<script" not in page
