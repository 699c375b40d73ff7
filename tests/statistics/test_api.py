"""The public surface of atoll.statistics."""

from __future__ import annotations

import atoll.statistics

PUBLIC = [
    "FIELDS",
    "Answerer",
    "AnswersError",
    "CategoryColumn",
    "CategoryFindings",
    "Findings",
    "FindingsError",
    "GroupFindings",
    "NoisedStatistics",
    "NumericErrors",
    "NumericFindings",
    "Quantile",
    "Disclosure",
    "Scaling",
    "StatisticsError",
    "StatisticsQuery",
    "Table",
    "TableError",
    "first_state",
    "release_noised",
    "row_norm",
    "state_shapes",
]
FINDINGS = {
    *("categories", "column", "from_json", "load", "noise", "numeric", "of", "participants", "records", "rows", "save"),
    *("scaling", "to_dict", "to_json"),
}


def test_the_public_surface_is_what_is_written_here() -> None:
    assert sorted(atoll.statistics.__all__) == sorted(PUBLIC)
    assert all(hasattr(atoll.statistics, name) for name in PUBLIC)


def test_the_members_of_findings_are_what_is_written_here() -> None:
    fields = set(atoll.statistics.Findings.__dataclass_fields__)
    members = {name for name in dir(atoll.statistics.Findings) if not name.startswith("_")}
    assert members | fields == FINDINGS
