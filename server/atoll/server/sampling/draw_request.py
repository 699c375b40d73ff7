"""The request for a draw, and its result."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

HOURS = 24


@dataclass(frozen=True, slots=True)
class Eligible:
    """A participant that can be drawn for the round.

    Attributes:
        participant: its id.
        examples: training examples that it declares; 0 for one that only evaluates.
        kind: "edge" or "silo".
        organisation: its organisation, "" for none.
    """

    participant: str
    examples: int = 1
    kind: str = "edge"
    organisation: str = ""


class Everyone(tuple[Eligible, ...]):
    """The participants to choose from, sorted by id, each once.

    Raises:
        ValueError: a participant is listed twice.
    """

    __slots__ = ()

    @classmethod
    def of(cls, eligible: Iterable[Eligible]) -> "Everyone":
        """From participants in any order."""
        if isinstance(eligible, cls):
            return eligible
        found = cls(sorted(eligible, key=lambda one: one.participant))
        if any(one.participant == other.participant for one, other in pairwise(found)):
            raise ValueError("a participant is listed as eligible twice; list each once")
        return found


@dataclass(frozen=True, slots=True)
class History:
    """A participant's past draws and reports; the default is none.

    Attributes:
        last_selected_at: epoch seconds of its last draw, None for never.
        times_selected: draws so far; `times_reported` of them ended with a report.
        online_s: seconds seen online in each hour of the day (UTC), 24 numbers.
        report_s: seconds from invitation to report of its latest reports.
    """

    last_selected_at: float | None = None
    times_selected: int = 0
    times_reported: int = 0
    online_s: tuple[float, ...] = (0.0,) * HOURS
    report_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.online_s) != HOURS:
            raise ValueError(f"online_s has {len(self.online_s)} numbers; one for each hour of the day is {HOURS}")


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """All inputs of a draw: equal requests give equal cohorts, in any order of the participants.

    Attributes:
        eligible: the participants to choose from, each once; they are sorted here, unless they are ``Everyone``.
        size: participants wanted; fewer are drawn when fewer are eligible. Under Poisson sampling, the expected number.
        seed: the run's secret; together with `round` and `attempt` it seeds each draw afresh.
        round: the number of the round.
        attempt: the attempt at the round.
        history: past draws and reports, by participant id.
        rate: Poisson probability of each participant. None for `size / len(eligible)`, which depends on who is
            connected; a private run therefore passes the rate of its privacy account.
        at: epoch seconds of the draw, for samplers that use the hour of the day.
        window_s: report window in seconds, for samplers that use report times.

    Raises:
        ValueError: a participant is listed twice, or a number is out of range.
    """

    eligible: tuple[Eligible, ...]
    size: int
    seed: int
    round: int
    attempt: int = 0
    history: Mapping[str, History] = field(default_factory=dict)
    rate: float | None = None
    at: float = 0.0
    window_s: float = 600.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "eligible", Everyone.of(self.eligible))
        if self.size < 0:
            raise ValueError(f"size = {self.size}: must be 0 or more participants")
        if self.rate is not None and not 0 <= self.rate <= 1:
            raise ValueError(f"rate = {self.rate}: must be a probability, from 0 to 1")
        if not (math.isfinite(self.at) and 0 < self.window_s < math.inf):
            raise ValueError(f"at = {self.at}, window_s = {self.window_s}: must be finite, the window above 0 seconds")

    def known(self, participant: str) -> History:
        """The participant's history, or an empty one."""
        return self.history.get(participant, _UNKNOWN)


_UNKNOWN = History()


@dataclass(frozen=True, slots=True)
class Cohort:
    """The result of a draw, with what is needed to repeat it.

    Attributes:
        members: (participant, declared examples), sorted by participant.
        eligible: number of participants that could have been drawn.
        sampler: name of the sampler.
        seed: the run's seed; with round and attempt it names the random stream.
    """

    members: tuple[tuple[str, int], ...]
    eligible: int
    sampler: str
    seed: int
