"""``[statistics]`` with ``[privacy]``: derived keys, and refusals of statistics without a noised version."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from atoll.server.jobs.privacy_section import MAX_CLIP
from atoll.statistics import row_norm

if TYPE_CHECKING:
    from atoll.server.jobs.privacy_section import Privacy
    from atoll.server.jobs.statistics_section import Statistics
    from atoll.server.jobs.tables import JobTables


def norm_of(section: Statistics, unit: object) -> float:
    """Bound on the L2 norm of the contribution of a unit of privacy: a row, or a participant with ``max_rows`` rows."""
    norm = row_norm(section.query)
    return norm if unit == "row" else norm * (section.max_rows or 1)


def max_abs_of(section: Statistics) -> float:
    """Upper bound on the magnitude of an answer's elements, a power of two."""
    return 2.0 ** math.ceil(math.log2(norm_of(section, "participant")))


def with_privacy_defaults(section: Statistics | None, table: object) -> object:
    """Derive keys of ``[privacy]``: the clip norm, and fresh noise in the only round."""
    if not isinstance(table, Mapping):
        return table
    norm = 1.0 if section is None else min(norm_of(section, table.get("unit", "participant")), MAX_CLIP)
    clip: dict[str, Any] = {} if "adaptive" in table else {"clip": norm}
    return {**clip, "mechanism": "gaussian", "max_participations": 1, **table}


def noise_conflicts(spec: JobTables, section: Statistics) -> Iterator[tuple[str, str]]:
    """Yield conflicts of keys in statistics with noise, and keys that need noise."""
    if spec.privacy is None:
        for key in ("bounds", "max_rows"):
            if key in section.model_fields_set:
                yield f"statistics.{key}", "has no effect without [privacy]; leave it out"
        return
    if section.max_rows is None:
        yield (
            "statistics.max_rows",
            "is missing: with [privacy] it bounds what one participant sends; give the most rows that one participant "
            "may have, and statistics.bounds for each column of numbers",
        )
        return
    yield from _without_noise(section)
    yield from _other_noise(section, spec.privacy)


def _without_noise(section: Statistics) -> Iterator[tuple[str, str]]:
    """Refuse statistics that have no noised version."""
    given = section.model_fields_set
    if section.minimum_and_maximum:
        yield (
            "statistics.minimum_and_maximum",
            "is the value of a single row, which noise cannot hide; leave it out, and ask for quantiles such as 0.01 "
            "and 0.99",
        )
    if "refinements" in given and section.refinements:
        yield (
            "statistics.refinements",
            "does not go with [privacy]: each narrowing of a quantile would spend the budget once more; leave it out, "
            "and raise statistics.bins or narrow statistics.bounds",
        )
    if "min_rows" in given:
        yield "statistics.min_rows", "has no effect with [privacy]: noise hides small cells; leave it out"


def _other_noise(section: Statistics, privacy: Privacy) -> Iterator[tuple[str, str]]:
    norm = norm_of(section, privacy.unit)
    if norm > MAX_CLIP:
        yield (
            "statistics.max_rows",
            f"lets one participant change the sums by {norm:.3g}; allowed is {MAX_CLIP:g}: lower it, or ask for fewer "
            "columns",
        )
    elif privacy.adaptive is not None:
        yield "privacy.adaptive", "does not go with [statistics]: there is one round; leave it out"
    elif privacy.clip != norm:
        yield (
            "privacy.clip",
            f"does not go with [statistics]: it follows from max_rows and the columns, {norm:g} here; leave it out",
        )
    if privacy.mechanism != "gaussian":
        yield "privacy.mechanism", 'does not go with [statistics]: there is one round; allowed is "gaussian"'
