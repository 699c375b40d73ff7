"""The report window of a round: fixed, or learned from its members' past report times.

Past report times are arguments, so the window is a pure function; the round's event records the result.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class FixedReportWindow:
    """The same window for every round.

    Raises:
        ValueError: it is not a finite time above 0 seconds.
    """

    window_s: float

    def __post_init__(self) -> None:
        _check(window_s=self.window_s)


@dataclass(frozen=True, slots=True)
class LearnedReportWindow:
    """A quantile of the members' usual report times, with some slack, within bounds.

    Attributes:
        quantile: share of the cohort that should report in time, above 0 and at most 1.
        factor: slack by which the quantile is multiplied, 1 or more. Only reports in time are learned from, so windows
            without slack could only shrink.
        min_s: shortest window.
        max_s: longest window.
        initial_s: the window until enough members have reported before.
        known_share: share of the cohort that must have reported before for the window to be learned.

    Raises:
        ValueError: a value is out of range, or the bounds are out of order.
    """

    quantile: float = 0.9
    factor: float = 1.5
    min_s: float = 5.0
    max_s: float = 3600.0
    initial_s: float = 600.0
    known_share: float = 0.5

    def __post_init__(self) -> None:
        _check(min_s=self.min_s, max_s=self.max_s, initial_s=self.initial_s)
        for name, value in (("quantile", self.quantile), ("known_share", self.known_share)):
            if not 0 < value <= 1:
                raise ValueError(f"{name} = {value}: must be above 0 and at most 1")
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"factor = {self.factor}: must be finite and 1 or more")
        if not self.min_s <= self.initial_s <= self.max_s:
            raise ValueError(
                f"min_s = {self.min_s}, initial_s = {self.initial_s}, max_s = {self.max_s}: must be in this order"
            )


ReportWindow = FixedReportWindow | LearnedReportWindow


def report_window_s(window: ReportWindow, past_report_s: Iterable[Sequence[float]]) -> float:
    """Seconds from the invitation to the deadline of a round.

    Args:
        window: fixed, or how to learn it.
        past_report_s: for each member of the cohort, the durations of its past reports; empty if it has none.
    """
    if isinstance(window, FixedReportWindow):
        return window.window_s
    members = list(past_report_s)
    usual = sorted(median(times) for times in members if times)
    if not usual or len(usual) < window.known_share * len(members):
        return window.initial_s
    expected = usual[math.ceil(window.quantile * len(usual)) - 1]
    return min(window.max_s, max(window.min_s, window.factor * expected))


def _check(**seconds: float) -> None:
    for name, value in seconds.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} = {value}: must be finite and above 0 seconds")
