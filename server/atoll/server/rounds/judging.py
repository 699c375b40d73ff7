"""Judges a run's models by its metric: which one is the best, and whether the run still improves.

A metric of an evaluate round, and a participants' metric of a train round (``eval/``), measures the model that the
round handed out. The server's evaluator (``server/``) measures the model that the train round made. Of several
measurements of one model the first counts.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from atoll.server.rounds.errors import PolicyError
from atoll.server.rounds.updates import Metrics
from atoll.text.figures import counted

SERVER_METRIC = "server/"
"""Prefix of the names of metrics that the server's evaluator gives."""


class Mode(StrEnum):
    """Which values of a metric are better: higher ones or lower ones."""

    MAX = "max"
    MIN = "min"

    def better(self, value: float, than: float, by: float = 0.0) -> bool:
        """Whether one value is better than another by more than ``by``."""
        return value > than + by if self is Mode.MAX else value < than - by


@dataclass(frozen=True, slots=True)
class Criterion:
    """A metric that decides between models; ``metric`` includes the prefix, as in ``eval/accuracy``."""

    metric: str
    mode: Mode


@dataclass(frozen=True, slots=True)
class StopRule:
    """Early stopping: the run ends after ``patience`` measured models in a row without an improvement.

    A model is an improvement if its metric beats the previous best by more than ``min_delta``.

    Raises:
        PolicyError: a bound is out of range.
    """

    criterion: Criterion
    patience: int
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise PolicyError(f"stop.patience = {self.patience}: must be 1 or more measured models")
        if not self.min_delta >= 0:
            raise PolicyError(f"stop.min_delta = {self.min_delta}: must be 0 or more")


@dataclass(frozen=True, slots=True)
class Standing:
    """The best of the models measured so far.

    Attributes:
        version: the best model, as the number of train rounds released before it was.
        value: its metric.
        measured: the newest model measured.
        since: models measured since the best one.
    """

    version: int
    value: float
    measured: int
    since: int = 0


def measured_version(metric: str, version: int) -> int:
    """The model that a metric of a round measures, for a round that handed out model ``version``."""
    return version + 1 if metric.startswith(SERVER_METRIC) else version


def judged(
    standing: Standing | None, criterion: Criterion, version: int, metrics: Metrics, min_delta: float = 0.0
) -> Standing | None:
    """The standing after a round that handed out model ``version`` has been released with these metrics."""
    value, measured = dict(metrics).get(criterion.metric), measured_version(criterion.metric, version)
    if value is None or (standing is not None and measured <= standing.measured):
        return standing
    if standing is None or criterion.mode.better(value, standing.value, min_delta):
        return Standing(measured, value, measured)
    return replace(standing, measured=measured, since=standing.since + 1)


def stop_reason(rule: StopRule, standing: Standing | None) -> str:
    """Why the run ends early; empty while it goes on."""
    if standing is None or standing.since < rule.patience:
        return ""
    by = f" by more than {rule.min_delta:g}" if rule.min_delta else ""
    return (
        f"stopped early: {rule.criterion.metric} was best with {standing.value:.6g} after "
        f"{counted(standing.version, 'round')}; the {counted(standing.since, 'model')} measured since did not improve "
        f"it{by}"
    )
