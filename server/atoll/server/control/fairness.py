"""The differences of evaluations between participants: each participant's metrics, and their spread per round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from atoll.server.control.best import COUNTS
from atoll.server.control.runs import RoundSummary

_EVALUATION = "eval/"


@dataclass(frozen=True)
class Spread:
    """The spread of one metric over the participants of one released round.

    Attributes:
        round: the round, from 0.
        version: the model that they evaluated, as the number of train rounds released before.
        participants: number of participants that reported it.
    """

    round: int
    version: int
    participants: int
    minimum: float
    median: float
    maximum: float

    @property
    def width(self) -> float:
        """The distance from the lowest value to the highest."""
        return self.maximum - self.minimum


@dataclass(frozen=True)
class Evaluated:
    """One metric of one participant over the run.

    Attributes:
        rounds: released rounds in which it reported the metric.
        last: the value in the last of these rounds, for model ``version``.
        examples: number of examples in that evaluation.
    """

    participant: str
    organisation: str
    rounds: int
    version: int
    last: float
    examples: int


def evaluated_metrics(rounds: Iterable[RoundSummary]) -> tuple[str, ...]:
    """Names of the metrics in participants' evaluations, sorted."""
    names = {name for item in rounds for member in item.members for name in member.metrics}
    return tuple(sorted(name for name in names if name.startswith(_EVALUATION) and name != COUNTS))


def spreads(rounds: Iterable[RoundSummary], metric: str) -> tuple[Spread, ...]:
    """The spread of a metric in each released round in which participants reported it."""
    found = []
    for item in rounds:
        values = [member.metrics[metric] for member in item.members if member.counted and metric in member.metrics]
        if item.released and values:
            span = (min(values), median(values), max(values))
            found.append(Spread(item.round, item.version, len(values), *span))
    return tuple(found)


def by_participant(rounds: Sequence[RoundSummary], metric: str) -> tuple[Evaluated, ...]:
    """The metric of each participant, in ascending order of last values."""
    counts: dict[str, int] = {}
    found: dict[str, Evaluated] = {}
    for item in rounds:
        for member in item.members if item.released else ():
            if not member.counted or metric not in member.metrics:
                continue
            name = member.participant
            counts[name] = counts.get(name, 0) + 1
            examples = int(member.metrics.get(COUNTS, 0))
            value = member.metrics[metric]
            found[name] = Evaluated(name, member.organisation, counts[name], item.version, value, examples)
    return tuple(sorted(found.values(), key=lambda one: (one.last, one.participant)))
