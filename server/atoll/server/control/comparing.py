"""Comparison of runs: metrics over the rounds with their spread over repeats, time, bytes and epsilon.

Runs of one *variant* are repeats of each other, which differ only in their seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from atoll.server.control.curves import Source, in_order, panels
from atoll.server.control.runs import RoundSummary


@dataclass(frozen=True)
class ComparedRun:
    """One run in a comparison.

    Attributes:
        variant: the settings in which its job differs from others; the same for repeats.
        run: its identifier.
        status: finished, failed, ...
        reason: why it failed, was paused or cancelled; empty otherwise.
        model: the digest of its newest model; empty if it failed.
        rounds: every attempt at a round, oldest first.
        settings: the keys of the job in which variants differ, with their values.
        job_seed: the seed of the participants' random numbers.
        cohort_seed: the seed of the draws; None if the server drew one.
        seconds: its duration in real seconds; None if it has not ended.
        virtual_s: its duration in virtual seconds; None for a deployed run.
        sent_bytes: bytes of all updates that participants sent, including those that did not count.
        epsilon: its privacy spending, at ``delta``; None for a run without privacy.
    """

    variant: str
    run: str
    status: str
    reason: str
    model: str
    rounds: tuple[RoundSummary, ...]
    settings: Mapping[str, object] = field(default_factory=dict)
    job_seed: int | None = None
    cohort_seed: int | None = None
    seconds: float | None = None
    virtual_s: float | None = None
    sent_bytes: int = 0
    epsilon: float | None = None
    delta: float | None = None

    @property
    def released(self) -> int:
        """Train rounds that released a model."""
        return sum(item.released and item.kind == "train" for item in self.rounds)


@dataclass(frozen=True)
class Spread:
    """Values of one figure over repeats, with mean and sample standard deviation (None for one value)."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean."""
        return fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation, with n - 1 in its denominator."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Band:
    """One metric of one variant.

    Attributes:
        variant: the variant of these repeats.
        points: (train rounds behind the model, mean, lowest, highest), where every repeat that measured the metric has
            a value.
        final: the last value of each repeat.
    """

    variant: str
    points: tuple[tuple[int, float, float, float], ...]
    final: Spread


@dataclass(frozen=True)
class ComparedMetric:
    """One metric of all runs, from one source, so that values are comparable.

    Attributes:
        metric: its name.
        source: the source of its values.
        bands: values over the rounds, for each variant that measured it.
        final: the last value of each run, in the order of the runs; None if not measured.
    """

    metric: str
    source: Source
    bands: tuple[Band, ...]
    final: tuple[float | None, ...]


@dataclass(frozen=True)
class VariantSummary:
    """A summary of the repeats of one variant.

    Attributes:
        variant: the settings in which its job differs from others.
        settings: see ``ComparedRun``.
        runs: number of runs.
        ended: number of runs that finished.
        metrics: last values over repeats, by name.
        rounds: train rounds released, over repeats.
        seconds: real seconds, over the repeats that have ended.
        virtual_s: virtual seconds, over repeats; None for deployed runs.
        sent_bytes: bytes sent, over repeats.
        epsilon: the maximum over the repeats; None without privacy.
    """

    variant: str
    settings: Mapping[str, object]
    runs: int
    ended: int
    metrics: Mapping[str, Spread]
    rounds: Spread
    seconds: Spread | None
    virtual_s: Spread | None
    sent_bytes: Spread
    epsilon: float | None


def by_variant(runs: Iterable[ComparedRun]) -> dict[str, list[ComparedRun]]:
    """The runs of each variant, in the order of their first runs."""
    found: dict[str, list[ComparedRun]] = {}
    for run in runs:
        found.setdefault(run.variant, []).append(run)
    return found


def compared_metrics(runs: Sequence[ComparedRun]) -> tuple[ComparedMetric, ...]:
    """Every metric of the released rounds: accuracy, loss, then the others by name.

    The values of a metric are from the source that most runs have; ties go to the most trustworthy source.
    """
    curves = [_curves(run) for run in runs]
    names = {name for found in curves for name, _ in found}
    return tuple(_compared(name, runs, curves) for name in in_order(names))


def summaries(runs: Sequence[ComparedRun]) -> tuple[VariantSummary, ...]:
    """The variants in the order of their first runs."""
    finals: dict[str, dict[str, Spread]] = {}
    for metric in compared_metrics(runs):
        for band in metric.bands:
            finals.setdefault(band.variant, {})[metric.metric] = band.final
    return tuple(
        VariantSummary(
            variant,
            found[0].settings,
            len(found),
            sum(run.status == "finished" for run in found),
            finals.get(variant, {}),
            Spread(tuple(float(run.released) for run in found)),
            _spread(run.seconds for run in found),
            _spread(run.virtual_s for run in found),
            Spread(tuple(float(run.sent_bytes) for run in found)),
            max((run.epsilon for run in found if run.epsilon is not None), default=None),
        )
        for variant, found in by_variant(runs).items()
    )


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = tuple(value for value in values if value is not None)
    return Spread(known) if known else None


def _curves(run: ComparedRun) -> dict[tuple[str, Source], dict[int, float]]:
    return {(panel.metric, curve.source): dict(curve.points) for panel in panels(run.rounds) for curve in panel.curves}


def _compared(
    name: str, runs: Sequence[ComparedRun], curves: Sequence[Mapping[tuple[str, Source], Mapping[int, float]]]
) -> ComparedMetric:
    source = max(Source, key=lambda one: sum((name, one) in found for found in curves))
    measured = [found.get((name, source)) for found in curves]
    repeats: dict[str, list[Mapping[int, float]]] = {}
    for run, points in zip(runs, measured, strict=True):
        if points:
            repeats.setdefault(run.variant, []).append(points)
    bands = tuple(_band(variant, found) for variant, found in repeats.items())
    return ComparedMetric(name, source, bands, tuple(points[max(points)] if points else None for points in measured))


def _band(variant: str, repeats: Sequence[Mapping[int, float]]) -> Band:
    shared = sorted(set.intersection(*(set(one) for one in repeats)))
    columns = ((x, [one[x] for one in repeats]) for x in shared)
    points = tuple((x, math.fsum(values) / len(values), min(values), max(values)) for x, values in columns)
    return Band(variant, points, Spread(tuple(one[max(one)] for one in repeats)))
