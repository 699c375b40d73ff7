"""Assigns each metric value to the model that it was measured on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from atoll.server.control.runs import RoundSummary

_NOT_CURVES = frozenset({"examples", "steps", "tokens"})
"""Metrics of the amount of work rather than of quality."""
_FIRST = ("accuracy", "loss")
SHOWN = 3
"""Maximum number of metrics in a line or table of rounds."""


class Source(StrEnum):
    """The source of a metric: the server's evaluator, participants on held-out data, or participants while training."""

    SERVER = "server"
    EVALUATION = "eval"
    TRAINING = "train"

    @property
    def label(self) -> str:
        """The source's name in legends."""
        return _LABELS[self]


_LABELS = {
    Source.SERVER: "tested by the server",
    Source.EVALUATION: "tested by participants",
    Source.TRAINING: "in training",
}


@dataclass(frozen=True)
class Curve:
    """One metric by one source: (train rounds behind the model, value), ascending."""

    source: Source
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Panel:
    """All curves of one metric, the most trustworthy source first."""

    metric: str
    curves: tuple[Curve, ...]

    @property
    def best_curve(self) -> Curve:
        """The curve of the most trustworthy source."""
        return self.curves[0]

    @property
    def final(self) -> float:
        """The last value of the best curve."""
        return self.best_curve.points[-1][1]


def panels(rounds: Iterable[RoundSummary]) -> tuple[Panel, ...]:
    """Every metric of the released rounds: accuracy, loss, then the others by name."""
    found: dict[str, dict[Source, dict[int, float]]] = {}
    for item in rounds:
        for source, metric, version, value in _values(item):
            found.setdefault(metric, {}).setdefault(source, {})[version] = value
    return tuple(Panel(metric, _curves(found[metric])) for metric in in_order(found))


def in_order(metrics: Iterable[str]) -> list[str]:
    """Sort names of metrics: accuracy, loss, then the others by name."""
    return sorted(metrics, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))


def shown(rounds: Iterable[RoundSummary], decides: str = "") -> tuple[str, ...]:
    """The metrics that fit in a line or table of these rounds; always includes ``decides``, such as ``eval/NAME``."""
    found = {name for item in rounds for _, name, _, _ in _values(item, released_only=False)}
    first = decides.rpartition("/")[2]
    chosen = sorted(in_order(found), key=lambda name: name != first)[:SHOWN]
    return tuple(in_order(chosen))


def latest(item: RoundSummary, metric: str) -> float | None:
    """A round's value of ``metric`` from the most trustworthy source; None if it was not measured."""
    by_source = {source: value for source, name, _, value in _values(item, released_only=False) if name == metric}
    return next((by_source[source] for source in Source if source in by_source), None)


def source_of(item: RoundSummary, metric: str) -> Source | None:
    """The source of the value of ``latest``; None if the metric was not measured."""
    sources = {source for source, name, _, _ in _values(item, released_only=False) if name == metric}
    return next((source for source in Source if source in sources), None)


def _curves(by_source: dict[Source, dict[int, float]]) -> tuple[Curve, ...]:
    return tuple(Curve(source, tuple(sorted(by_source[source].items()))) for source in Source if source in by_source)


def _values(item: RoundSummary, *, released_only: bool = True) -> Iterator[tuple[Source, str, int, float]]:
    """Yield (source, metric, model, value): evaluations measure the model handed out, others the released one."""
    if released_only and not item.released:
        return
    became = item.version + (item.kind == "train")
    for name, value in item.metrics.items():
        prefix, _, metric = name.rpartition("/")
        source = Source(prefix) if prefix in set(Source) else _unnamed(item)
        if metric not in _NOT_CURVES and math.isfinite(value):
            yield source, metric, item.version if source is Source.EVALUATION else became, value


def _unnamed(item: RoundSummary) -> Source:
    return Source.EVALUATION if item.kind == "evaluate" else Source.TRAINING
