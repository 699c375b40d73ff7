"""What ``[statistics]`` demands of a job's other tables, and the keys that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from atoll.server.jobs.statistics_section import Statistics
from atoll.statistics.blocks import answer_size
from atoll.statistics.limbs import MAX_ABS

if TYPE_CHECKING:
    from atoll.server.jobs.models import JobTables

_AGGREGATION = {"weighting": "uniform", "max_abs": MAX_ABS, "encoding": "float64"}
MAX_ANSWER = 1 << 23
"""Maximum number of elements of an answer: 64 MiB, which server and participants hold in memory."""
_EVALUATION = {"before_training": False, "final": False}


def with_statistics_defaults(tables: object) -> object:
    """The tables with the only values that statistics allow, where the file leaves keys out."""
    if not isinstance(tables, dict) or tables.get("statistics") is None:
        return tables
    found = {name: tables.get(name, {}) for name in ("job", "cohort", "aggregation", "evaluation")}
    if not all(isinstance(table, dict) for table in found.values()):
        return tables
    job = {"rounds": _rounds(tables["statistics"])} | found["job"]
    size = found["cohort"].get("size")
    cohort = ({} if size is None else {"quorum": size}) | {"required": "all"} | found["cohort"]
    aggregation, evaluation = _AGGREGATION | found["aggregation"], _EVALUATION | found["evaluation"]
    return tables | {"job": job, "cohort": cohort, "aggregation": aggregation, "evaluation": evaluation}


def statistics_conflicts(spec: JobTables) -> Iterator[tuple[str, str]]:
    """Keys that do not go with ``[statistics]``; nothing without that section."""
    section = spec.statistics
    if section is None:
        return
    why = "does not go with [statistics]"
    yield from _other_tables(spec, why)
    if spec.job.rounds != section.query.rounds:
        yield "job.rounds", f"the query of [statistics] takes {section.query.rounds} rounds; leave it out"
    if (elements := answer_size(section.query)) > MAX_ANSWER:
        yield (
            "statistics.bins",
            f"an answer would have {elements} numbers, at most {MAX_ANSWER}; lower it, or ask for fewer columns or "
            "quantiles",
        )
    yield from _every_member(spec, section, why)
    for table, values in (("aggregation", _AGGREGATION), ("evaluation", _EVALUATION)):
        for key, value in values.items():
            if getattr(getattr(spec, table), key) != value:
                yield f"{table}.{key}", f"{why}, whose sums need {value!r}; leave it out"
    if spec.aggregation.fragments != 1:
        yield "aggregation.fragments", f"{why}; leave it out"
    if spec.aggregation.frozen:
        yield "aggregation.frozen", f"{why}; leave it out"
    if spec.evaluation.every or spec.evaluation.server is not None:
        yield "evaluation", f"{why}: there is no model to evaluate; leave it out"


def _other_tables(spec: JobTables, why: str) -> Iterator[tuple[str, str]]:
    if spec.model is not None:
        yield "model", f"{why}: there is no initial model; leave it out"
    if "optimiser" in spec.model_fields_set:
        yield "optimiser", f"{why}: there is no model to train; leave it out"
    if spec.iterate_averaging is not None:
        yield "iterate_averaging", f"{why}: there is no model; leave it out"
    if spec.stop is not None:
        yield "stop", f"{why}: there is no model that gets better; leave it out"
    if spec.retention.best is not None:
        yield "retention.best", f"{why}: there is no best model; leave it out"
    if spec.privacy is not None:
        yield (
            "privacy",
            f"{why}: one participant may hold any number of rows of any size, so noise that hides a participant would "
            "hide the figures; leave it out and rely on statistics.min_rows and min_participants, or train a model "
            "with [privacy]",
        )


def _every_member(spec: JobTables, section: Statistics, why: str) -> Iterator[tuple[str, str]]:
    """Rules that make each round count the same rows."""
    cohort = spec.cohort
    if cohort.sampler != "uniform":
        yield "cohort.sampler", f'is "{cohort.sampler}": each round must count the same participants; leave it out'
    if cohort.quorum != cohort.size:
        yield "cohort.quorum", f"every one of the {cohort.size} participants must answer each round; leave it out"
    if cohort.over_selection != 1:
        yield "cohort.over_selection", f"{why}: every participant that is invited must answer; leave it out"
    if spec.straggler.late != "drop":
        yield "straggler.late", f"{why}: a late answer belongs to another round; leave it out"
    if cohort.size < section.min_participants:
        yield (
            "cohort.size",
            f"is below statistics.min_participants {section.min_participants}: nothing would be released; raise it, or "
            "lower min_participants",
        )


def _rounds(table: object) -> int:
    """Rounds of the query; 1 if the section is not valid, so that its own problems alone are reported."""
    if isinstance(table, Statistics):
        return table.query.rounds
    try:
        return Statistics.model_validate(_plain(table)).query.rounds
    except ValidationError:
        return 1


def _plain(table: object) -> Any:
    return dict(table) if isinstance(table, dict) else table
