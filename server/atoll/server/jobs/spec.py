"""A whole job file: rules between its tables, and defaults that depend on several of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Self

from pydantic import model_validator

from atoll.server.jobs.refusals import refusals
from atoll.server.jobs.statistics_rules import statistics_conflicts, with_statistics_defaults
from atoll.server.jobs.tables import JobTables

EVALUATED = "eval/"
"""Prefix of the names of metrics that participants measure."""
GRID_WEIGHT_BITS = 46
"""Maximum bits of a round's total weight and ``max_abs`` together: 62 of the sum minus 16 for the fraction."""


class JobSpec(JobTables):
    """A whole valid job file."""

    @model_validator(mode="before")
    @classmethod
    def _private_defaults(cls, tables: object) -> object:
        """Values for keys that are left out: the only ones that privacy allows, and the fitting mechanism."""
        if not isinstance(tables, dict) or "privacy" not in tables:
            return tables
        found = {name: tables.get(name, {}) for name in ("cohort", "evaluation", "aggregation", "privacy")}
        if not all(isinstance(table, dict) for table in found.values()):
            return tables
        evaluation = {"before_training": False, "final": False} | found["evaluation"]
        cohort = ({"quorum": 0} if found["cohort"].get("sampler") == "poisson" else {}) | found["cohort"]
        privacy = {"mechanism": _default_mechanism(found)} | found["privacy"]
        defaults = {"evaluation": evaluation, "privacy": privacy}
        return tables | defaults | ({"cohort": cohort} if "cohort" in tables else {})

    @model_validator(mode="before")
    @classmethod
    def _statistics_defaults(cls, tables: object) -> object:
        """Values of keys that a job of statistics leaves out."""
        return with_statistics_defaults(tables)

    @property
    def best(self) -> tuple[str, str] | None:
        """The metric that decides which model is the best, and its mode, or None."""
        if self.stop is None or self.retention.criterion is not None:
            return self.retention.criterion
        return self.stop.metric, self.stop.mode

    def seeded(self, seed: int | None) -> Self:
        """The job with the seed of its run, which the server has drawn if the job has none."""
        return self.model_copy(update={"job": self.job.model_copy(update={"seed": seed})})

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Refuse conflicts with privacy, quorum 0 without it, fragments with late reports, overflowing sums."""
        yield from refusals(self)
        yield from statistics_conflicts(self)
        if self.cohort.quorum == 0 and self.cohort.sampler != "poisson" and self.privacy is None:
            yield "cohort.quorum", f'needs cohort.sampler "poisson"; allowed are 1 to {self.cohort.size}'
        yield from self._sum_conflicts()
        yield from self._metric_conflicts()
        yield from self._mode_conflicts()

    def _metric_conflicts(self) -> Iterator[tuple[str, str]]:
        """Refuse a deciding metric of participants that do not evaluate."""
        if self._evaluates:
            return
        named = {"retention.best": self.retention.best, "stop.metric": None if self.stop is None else self.stop.metric}
        for key, metric in named.items():
            if metric is not None and metric.startswith(EVALUATED):
                yield key, self._never_measured(metric)

    def _mode_conflicts(self) -> Iterator[tuple[str, str]]:
        """Refuse two modes for the same metric."""
        kept, stop = self.retention, self.stop
        if stop is not None and stop.metric == kept.best and stop.mode != kept.mode:
            modes = f'is "{stop.mode}" for {stop.metric} and retention.mode is "{kept.mode}"'
            yield "stop.mode", f"{modes}; write the same mode in both sections"

    @property
    def _evaluates(self) -> bool:
        evaluation = self.evaluation
        return evaluation.before_training or evaluation.every > 0 or evaluation.final

    def _never_measured(self, metric: str) -> str:
        if self.privacy is not None:
            return f"{metric} is never measured: a private run has no participants' metrics; name one of the server's"
        return f"{metric} is never measured: participants do not evaluate; set evaluation.before_training to true"

    def _sum_conflicts(self) -> Iterator[tuple[str, str]]:
        section = self.aggregation
        if section.fragments > 1 and self.straggler.late == "carry":
            yield (
                "straggler.late",
                f"does not go with aggregation.fragments = {section.fragments}: the next round updates another part of "
                'the model, which a late report does not have; allowed is "drop"',
            )
        if section.weighting == "uniform":
            return
        updates = self.cohort.invited * (1 + self.straggler.carried_rounds)
        weight_bits = (updates * section.max_weight).bit_length()
        value_bits = math.frexp(section.max_abs)[1] - 1
        if weight_bits + value_bits > GRID_WEIGHT_BITS:
            allowed = (2 ** (GRID_WEIGHT_BITS - value_bits) - 1) // updates
            yield (
                "aggregation.max_weight",
                f"with up to {updates} updates in a sum and max_abs {section.max_abs:g} the sum would lose precision; "
                f"allowed are 1 to {allowed}, or choose a smaller max_abs",
            )


def _default_mechanism(found: dict[str, dict[str, Any]]) -> str:
    """A private job's default: BLT where it can account for capped participation, otherwise fresh noise."""
    privacy = found["privacy"]
    fits = "adaptive" not in privacy and found["aggregation"].get("fragments", 1) == 1
    capped = "max_participations" in privacy and found["cohort"].get("sampler") != "poisson"
    return "blt" if capped and fits else "gaussian"
