"""`[evaluation]`, `[retention]` and `[stop]`: how models are measured, and what the results decide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atoll.server.jobs.section import MAX_ROUNDS, JobTable
from atoll.settings.section import Hint

METRIC_PATTERN = r"^(eval|server)/[^\x00-\x20\x7f]([^\x00-\x1f\x7f]{0,126}[^\x00-\x20\x7f])?$"
METRIC_FORM = "`eval/NAME` or `server/NAME`"
MODE_FORM = '"min" (lower is better, as for a loss) or "max" (higher is better, as for an accuracy)'


class Evaluation(JobTable):
    """How models are evaluated."""

    before_training: Annotated[
        bool,
        Field(
            description="Participants also evaluate the model that they receive, before they train from it, and send "
            "both results in one report, which costs no extra transfer."
        ),
        Hint(default="true; false with `[privacy]`"),
    ] = True
    every: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_ROUNDS,
            description="Number of training rounds between separate rounds in which participants evaluate the new "
            "model; 0 for none.",
        ),
    ] = 0
    final: Annotated[
        bool,
        Field(description="Participants evaluate the final model in a separate round."),
        Hint(default="true; false with `[privacy]`"),
    ] = True
    server: Annotated[
        str | None,
        Field(
            pattern=r"^[a-z][a-z0-9_-]{0,63}$",
            description="Name of an evaluator that the operator installed (`atoll server start --evaluator "
            "NAME=MODULE:FUNCTION`); it evaluates every released model on the server.",
        ),
        Hint(allowed="the name of an installed evaluator", default="none"),
    ] = None


class Retention(JobTable):
    """The models that the server keeps. The first and the last are always kept."""

    models: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_ROUNDS,
            description="Number of newest models to keep while the run is active, and for a while afterwards.",
        ),
        Hint(default="the server's `keep_models`"),
    ] = None
    best: Annotated[
        str | None,
        Field(
            pattern=METRIC_PATTERN,
            description="The metric that decides which model is the best; that model is also kept. `eval/NAME`: of "
            "the participants' evaluations. `server/NAME`: of the server's evaluator.",
        ),
        Hint(allowed=METRIC_FORM, default="`stop.metric`, if there is a `[stop]` section; else none"),
    ] = None
    mode: Annotated[
        Literal["max", "min"] | None,
        Field(description="Which values of that metric are better; no metric has a default."),
        Hint(allowed=MODE_FORM, default="**required** with `best`"),
    ] = None

    @property
    def criterion(self) -> tuple[str, str] | None:
        """The deciding metric and its mode; None if this section names no metric."""
        return None if self.best is None or self.mode is None else (self.best, self.mode)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that a metric and its mode are given together."""
        if self.best is None:
            yield from self.unused(("mode",), "retention.best names no metric")
        elif self.mode is None:
            yield "mode", f"is missing; needed for {self.best} is {MODE_FORM}"


class Stop(JobTable):
    """Early stopping: the run ends before `job.rounds` when its models stop improving.

    A model is measured by the evaluations of the round that hands it out (`eval/NAME`), or by the server when it is
    released (`server/NAME`). The final evaluation still takes place.
    """

    metric: Annotated[
        str,
        Field(
            pattern=METRIC_PATTERN,
            description="The metric that decides: `eval/NAME` of the participants' evaluations, or `server/NAME` of "
            "the server's evaluator.",
        ),
        Hint(allowed=METRIC_FORM),
    ]
    mode: Annotated[
        Literal["max", "min"],
        Field(description="Which values of that metric are better; no metric has a default."),
        Hint(allowed=MODE_FORM),
    ]
    patience: Annotated[
        int,
        Field(
            ge=1,
            le=MAX_ROUNDS,
            description="Number of measured models in a row without an improvement after which the run ends.",
        ),
    ]
    min_delta: Annotated[
        float,
        Field(
            ge=0,
            le=1e9,
            description="A model is an improvement if its metric is better than the best so far by more than this.",
        ),
    ] = 0.0
