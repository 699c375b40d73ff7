"""`[straggler]`: how long a round waits, and what happens to late reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atoll.server.jobs.section import MAX_SECONDS, JobTable, Seconds
from atoll.settings.section import Hint


class LearnedWindow(JobTable):
    """A report window learned from past report times instead of `report_window_s`.

    The window is the `quantile` of the cohort's expected report times, times `factor`, between `min_s` and `max_s`.
    """

    quantile: Annotated[float, Field(gt=0, le=1, description="Share of the cohort that should report in time.")] = 0.9
    factor: Annotated[float, Field(ge=1, le=100, description="Factor on the learned time.")] = 1.5
    min_s: Annotated[Seconds, Field(description="Shortest window.")] = 5.0
    max_s: Annotated[Seconds, Field(description="Longest window.")] = 3600.0
    initial_s: Annotated[Seconds, Field(description="Window before any report times are known.")] = 600.0

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that the bounds are in order."""
        if self.min_s > self.max_s:
            yield "min_s", f"is above max_s {self.max_s:g}"
        elif not self.min_s <= self.initial_s <= self.max_s:
            yield "initial_s", f"is not between min_s {self.min_s:g} and max_s {self.max_s:g}"


class Straggler(JobTable):
    """How long a round waits, and what happens to late reports."""

    report_window_s: Annotated[
        Seconds,
        Field(
            description="Seconds from the invitation to the deadline. Not with `learned`. A private round whose "
            "account relies on a random draw always lasts this long."
        ),
    ] = 600.0
    learned: Annotated[
        LearnedWindow | None,
        Field(description="Learn the window instead, e.g. `learned = { quantile = 0.9, factor = 1.5 }`."),
        Hint(allowed="a table, see below", default="not learned"),
    ] = None
    late: Annotated[
        Literal["drop", "carry"],
        Field(
            description="`drop`: a report after the deadline is not used. `carry`: it counts in the next round, with "
            "weight times (1 + rounds late) ^ -`exponent`."
        ),
    ] = "drop"
    max_staleness: Annotated[
        int, Field(ge=1, le=1000, description="With `carry`: number of rounds after which a late report is dropped.")
    ] = 2
    exponent: Annotated[
        float,
        Field(
            ge=0,
            le=10,
            description="With `carry`: exponent with which a late report loses weight; with 0 it loses none.",
        ),
    ] = 0.5
    max_attempts: Annotated[
        int,
        Field(
            ge=1,
            le=1000,
            description="Maximum number of attempts at a round before the run fails for lack of a quorum.",
        ),
    ] = 5
    retry_delay_s: Annotated[
        float, Field(ge=0, le=MAX_SECONDS, description="Seconds between a missed quorum and the next attempt.")
    ] = 5.0

    @property
    def carried_rounds(self) -> int:
        """Number of later rounds in which a report may still count; 0 if late reports are dropped."""
        return self.max_staleness if self.late == "carry" else 0

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that there is one kind of window, and no carry settings if late reports are dropped."""
        if self.learned is not None:
            yield from self.unused(("report_window_s",), "straggler.learned sets the window")
        if self.late == "drop":
            yield from self.unused(("max_staleness", "exponent"), 'straggler.late is "drop"')
