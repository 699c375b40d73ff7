"""Rules of ``[statistics]`` for a job's other tables, and the keys that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from atoll.server.jobs.statistics_noise import max_abs_of, noise_conflicts, with_privacy_defaults
from atoll.server.jobs.statistics_section import Statistics
from atoll.statistics.blocks import answer_size
from atoll.statistics.limbs import MAX_ABS
from atoll.statistics.noised import noised_size

if TYPE_CHECKING:
    from atoll.server.jobs.tables import JobTables

MAX_ANSWER = 1 << 23
"""Maximum number of elements of an answer, 64 MiB, which server and participants hold in memory."""
_EVALUATION = {"before_training": False, "final": False}


def with_statistics_defaults(tables: object) -> object:
    """Fill keys that the file leaves out with the only values that statistics allow."""
    if not isinstance(tables, dict) or tables.get("statistics") is None:
        return tables
    found = {name: tables.get(name, {}) for name in ("job", "cohort", "aggregation", "evaluation")}
    if not all(isinstance(table, dict) for table in found.values()):
        return tables
    section, private = _section(tables["statistics"]), tables.get("privacy") is not None
    job = {"rounds": 1 if section is None else section.query.rounds} | found["job"]
    size = found["cohort"].get("size")
    every = {} if private else ({} if size is None else {"quorum": size}) | {"required": "all"}
    made = {
        "job": job,
        "cohort": every | found["cohort"],
        "aggregation": _sums(section) | found["aggregation"],
        "evaluation": _EVALUATION | found["evaluation"],
    }
    if private:
        made["privacy"] = with_privacy_defaults(section, tables["privacy"])
    return tables | made


def _sums(section: Statistics | None) -> dict[str, object]:
    """The aggregation settings with which answers are summed."""
    most = MAX_ABS if section is None or section.max_rows is None else max_abs_of(section)
    return {"weighting": "uniform", "max_abs": most, "encoding": "float64"}


def statistics_conflicts(spec: JobTables) -> Iterator[tuple[str, str]]:
    """Yield keys that conflict with ``[statistics]``; nothing without that section."""
    section = spec.statistics
    if section is None:
        return
    why = "does not go with [statistics]"
    yield from _other_tables(spec, why)
    if spec.job.rounds != section.query.rounds:
        yield "job.rounds", f"the query of [statistics] takes {section.query.rounds} rounds; leave it out"
    if (elements := _elements(section)) > MAX_ANSWER:
        yield (
            "statistics.bins",
            f"an answer would have {elements} numbers, at most {MAX_ANSWER}; lower it, or ask for fewer columns, "
            "quantiles or labels",
        )
    yield from _every_member(spec, section, why)
    yield from noise_conflicts(spec, section)
    for table, values in (("aggregation", _sums(section)), ("evaluation", _EVALUATION)):
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


def _every_member(spec: JobTables, section: Statistics, why: str) -> Iterator[tuple[str, str]]:
    """Yield violations of the rules that make each round count the same rows."""
    cohort = spec.cohort
    if cohort.sampler != "uniform":
        yield "cohort.sampler", f'is "{cohort.sampler}": each round must count the same participants; leave it out'
    if cohort.quorum != cohort.size and spec.privacy is None:
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


def _elements(section: Statistics) -> int:
    query = section.query
    return answer_size(query) if query.noised is None else noised_size(query)


def _section(table: object) -> Statistics | None:
    """The section; None if it is invalid, so that only its own problems are reported."""
    if isinstance(table, Statistics):
        return table
    try:
        return Statistics.model_validate(_plain(table))
    except ValidationError:
        return None


def _plain(table: object) -> Any:
    return dict(table) if isinstance(table, dict) else table
