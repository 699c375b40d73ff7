"""The privacy terms that a participant demands. It must trust the operator to keep them: it cannot see the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.client.errors import UsageError
from atoll.client.task import TaskKind

if TYPE_CHECKING:
    from atoll.client.task import Task
    from atoll.wire.privacy_terms import PrivacyTerms

_REPLACE_ONE = "replace_one"
"""The values of ``PrivacyAdjacency``, copied because importing it loads protobuf."""
_PARTICIPANT, _ROW = "participant", "row"
"""The values of ``PrivacyUnit``."""


@dataclass(frozen=True)
class Total:
    """Epsilon and delta of several runs together: their sum, or its limit."""

    epsilon: float = math.inf
    delta: float = math.inf


@dataclass(frozen=True)
class PrivacyDemand:
    """The privacy terms that are acceptable.

    Attributes:
        require: decline tasks without terms, and tasks that report metrics, which no terms cover.
        max_epsilon: of the run, over all its planned rounds.
        max_delta: of the run, over all its planned rounds.
        max_total_epsilon: of all the participant's runs together, ever.
        max_total_delta: of all the participant's runs together, ever.
        min_noise_multiplier: standard deviation of the noise over the sensitivity of the sum to one participant: its
            largest contribution, or twice that under replace-one.
        mechanisms: names of acceptable mechanisms; empty: any.
        adjacencies: names of acceptable adjacencies; empty: any.
        samplings: kinds of sampling whose amplification may be counted; empty: any.
        units: what may be protected: "participant", or "row" of a table, as statistics may promise. With "row" the
            limits of all runs together are those of a row; empty: any.

    Raises:
        UsageError: for a total limit without ``require``.
    """

    require: bool = True
    max_epsilon: float = math.inf
    max_delta: float = 1.0
    max_total_epsilon: float = math.inf
    max_total_delta: float = math.inf
    min_noise_multiplier: float = 0.0
    mechanisms: tuple[str, ...] = ()
    adjacencies: tuple[str, ...] = ()
    samplings: tuple[str, ...] = ()
    units: tuple[str, ...] = (_PARTICIPANT,)

    def __post_init__(self) -> None:
        if not self.require and self.total != Total():
            raise UsageError(
                "require = false with max_total_epsilon or max_total_delta: the participant would accept runs without "
                "promises, whose cost cannot be added up; leave out one of the two"
            )

    @property
    def total(self) -> Total:
        """The limit of all runs together."""
        return Total(self.max_total_epsilon, self.max_total_delta)

    def objection(self, task: Task) -> str | None:
        """Why a task's terms are not acceptable; None if they are."""
        terms = task.privacy
        if terms is None:
            return "the run has no privacy terms, and they are required" if self.require else None
        if self.require and (task.kind is TaskKind.EVALUATE or task.evaluate):
            return "the task reports metrics, which privacy terms do not cover"
        return self._objection(terms)

    def _objection(self, terms: PrivacyTerms) -> str | None:
        if not terms.epsilon <= self.max_epsilon:
            return f"the run's epsilon is {terms.epsilon:g}, at most {self.max_epsilon:g} allowed"
        if not terms.delta <= self.max_delta:
            return f"the run's delta is {terms.delta:g}, at most {self.max_delta:g} allowed"
        noise, halved = _noise_of(terms)
        if not noise >= self.min_noise_multiplier:
            return f"the noise multiplier is {noise:g}{halved}, at least {self.min_noise_multiplier:g} wanted"
        for name, value, allowed in (
            ("mechanism", terms.mechanism, self.mechanisms),
            ("adjacency", terms.adjacency, self.adjacencies),
            ("sampling that counts", terms.sampling, self.samplings),
            ("unit", terms.unit, self.units),
        ):
            if allowed and value not in allowed:
                return f"the {name} is {value}, allowed are {', '.join(allowed)}"
        return None


def is_row_private(task: Task) -> bool:
    """Whether a task's terms protect rows of the participant's table instead of the participant."""
    return task.privacy is not None and task.privacy.unit == _ROW


def _noise_of(terms: PrivacyTerms) -> tuple[float, str]:
    """Noise over sensitivity, with a note for replace-one, where the sensitivity is two contributions."""
    if terms.adjacency == _REPLACE_ONE:
        return terms.noise_multiplier / 2, f" ({terms.noise_multiplier:g} over a sensitivity of 2, for replace_one)"
    return terms.noise_multiplier, ""
