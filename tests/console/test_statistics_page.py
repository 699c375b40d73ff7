"""The console's page of a run of statistics: the tables that its report has, too."""

from __future__ import annotations

from dataclasses import replace

from atoll.console.templating import page
from atoll.operator import Cohort, Job, Privacy, RunSummary, Statistics
from atoll.simulation import Federation
from atoll.statistics import Findings
from tests.simulation.test_statistics import Hospital

RUN = RunSummary("rabc", "ages", "finished", "", 1, 1, 1000.0, 1010.0, "ab")


def shown(findings: Findings) -> str:
    values = {"run": RUN, "findings": findings}
    body = page("statistics.html.j2", values, address="127.0.0.1:7400", session=None).body
    return bytes(body).decode()


def found(asked: Statistics, privacy: Privacy | None = None) -> Findings:
    job = Job(cohort=Cohort(size=4), statistics=asked, privacy=privacy)
    return Federation(Hospital, 4).run(job, strict=True).statistics()


def test_figures_of_labels_are_shown() -> None:
    findings = found(Statistics(numeric=("age",), categories={"sex": ("f", "m")}, by="sex"))
    text = shown(findings)
    assert f"Statistics: {findings.rows} rows of 4 participants" in text
    assert f"{findings.column('age').group('f').mean:.6g}" in text
    assert "±" not in text


def test_figures_with_noise_have_their_standard_errors() -> None:
    asked = Statistics(numeric=("age",), categories={"sex": ("f", "m")}, bounds={"age": (0, 120)}, max_rows=50)
    findings = found(asked, Privacy(population="wards", unit="row", epsilon=1.0, delta=1e-6))
    errors = findings.column("age").errors
    assert errors is not None
    text = shown(findings)
    assert f"± {errors.count:.2g}" in text
    assert f"± {findings.categories[0].error:.2g}" in text
    assert "standard error of the noise" in text
    assert "suppressed" not in text


def test_counts_below_zero_have_no_bars() -> None:
    """Noise makes them where there are few rows; without any above 0 the page was an error of the server."""
    findings = found(Statistics(numeric=("age",)))
    age = findings.column("age")
    for counts in ((-3, 0, -1), (-3, -2, -1)):
        text = shown(replace(findings, numeric=(replace(age, histogram=counts, edges=(0.0, 1.0, 2.0, 3.0)),)))
        assert "<rect" not in text
    text = shown(replace(findings, numeric=(replace(age, histogram=(-3, 2), edges=(0.0, 1.0, 2.0)),)))
    assert text.count("<rect") == 1
