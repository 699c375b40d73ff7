"""A run in the form of experiment trackers: parameters, metrics by step, tags. Pure; the same for simulations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.operator.run_job import job_keys, promises
from atoll.server import __version__
from atoll.text.printable import printable

if TYPE_CHECKING:
    from atoll.server.control import RoundSummary, RunDetail, RunSpending

Param = bool | int | float | str
RUN_TAG = "atoll.run"
"""The tag that identifies a run."""
MAX_EXACT = 2**53
"""Trackers store numbers as doubles; larger integers, such as seeds, are stored as text."""
_OF_DATA = ("total_weight",)
"""Figures of rounds that depend on data protected by a private run: not only operators read a tracker."""
_OF_DRAWS = ("cohort", "reported", "duration_s")
"""Figures of rounds that depend on who was drawn, if the draw is secret (docs/privacy/accounting.md)."""


@dataclass(frozen=True)
class Point:
    """A value of one metric.

    Attributes:
        name: ``server/NAME``, ``eval/NAME`` and ``train/NAME`` as rounds have them, ``round/...`` for the round itself.
        step: train rounds behind the measured model.
        value: a finite number.
        at: seconds since the epoch, UTC; virtual in a simulation.
    """

    name: str
    step: int
    value: float
    at: float

    @property
    def key(self) -> tuple[str, int]:
        """The key of a point, unique in a run."""
        return self.name, self.step


@dataclass(frozen=True)
class Tracked:
    """A run for an experiment tracker.

    Attributes:
        run: the run's id.
        name: the job's name.
        status: running, paused, finished, failed or cancelled.
        params: the keys of the job, dotted, with their defaults.
        tags: run id, digest of the newest model, version of Atoll, status and reason, epsilon and delta.
        points: metrics of released rounds, in the order of the rounds. A later call has the same points first.
        created_at: seconds since the epoch, UTC; virtual in a simulation, like ``ended_at`` (None: it has not ended).
    """

    run: str
    name: str
    status: str
    params: Mapping[str, Param]
    tags: Mapping[str, str]
    points: tuple[Point, ...]
    created_at: float
    ended_at: float | None

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.ended_at is not None


def tracked(detail: RunDetail, spending: RunSpending | None = None) -> Tracked:
    """A run with its rounds so far as values for a tracker.

    Weights of a private run are omitted. If its draw is secret, counts and durations of rounds and the reason of its
    end are omitted too: the privacy bound does not cover them.

    Args:
        detail: the run.
        spending: of a private run; None for other runs.
    """
    run = detail.run
    params = {printable(key): _param(value) for key, value in job_keys(detail.job_toml, complete=True).items()}
    if detail.seed is not None:
        params["job.seed"] = _param(detail.seed)
    return Tracked(
        run=run.run,
        name=printable(run.name),
        status=run.status,
        params=params,
        tags=dict(_tags(detail, spending)),
        points=_points(detail),
        created_at=run.created_at,
        ended_at=run.finished_at if run.ended else None,
    )


def _tags(detail: RunDetail, spending: RunSpending | None) -> Iterator[tuple[str, str]]:
    run = detail.run
    yield RUN_TAG, run.run
    yield "atoll.version", __version__
    yield "atoll.status", run.status
    yield "atoll.model", run.model_blob
    yield "atoll.rounds_released", str(run.rounds_released)
    if run.reason and not promises(detail).secret:  # the reason may name or count members
        yield "atoll.reason", printable(run.reason)
    if detail.best is not None:
        yield "atoll.best_metric", printable(detail.best.metric)
        yield "atoll.best_round", str(detail.best.round)
    if spending is not None:
        yield "atoll.epsilon", repr(spending.epsilon)
        yield "atoll.delta", repr(spending.delta)


def _param(value: object) -> Param:
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) <= MAX_EXACT):
        return value
    return printable(str(value))


def _points(detail: RunDetail) -> tuple[Point, ...]:
    """The first value of a metric at a step is kept: a tracker's points never change."""
    found: dict[tuple[str, int], Point] = {}
    said = promises(detail)
    figures = (*(() if said.secret else _OF_DRAWS), *(() if said.private else _OF_DATA))
    for item in detail.rounds:
        for point in _points_of(item, figures) if item.released else ():
            found.setdefault(point.key, point)
    return tuple(found.values())


def _points_of(item: RoundSummary, figures: tuple[str, ...]) -> Iterator[Point]:
    at = item.closed_at or item.created_at
    trained = item.kind == "train"
    for name, value in sorted(item.metrics.items()):
        before = name.startswith("eval/")  # participants evaluate the model with which the round began
        if math.isfinite(value):
            yield Point(printable(name), item.version + (trained and not before), value, at)
    if trained:
        for name in figures:
            figure = getattr(item, name)
            if figure is not None:
                yield Point(f"round/{name}", item.version + 1, float(figure), at)
