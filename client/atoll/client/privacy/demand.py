"""What a participant wants promised before it trains. It takes the operator's word for it: it cannot see the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.client.task import TaskKind

if TYPE_CHECKING:
    from atoll.client.task import Task
    from atoll.wire.privacy import PrivacyTerms


@dataclass(frozen=True)
class PrivacyDemand:
    """The terms that are good enough.

    Attributes:
        require: decline tasks without terms, and tasks that report metrics, which no terms cover.
        max_epsilon: of the run, over all its planned rounds.
        max_delta: likewise.
        min_noise_multiplier: standard deviation of the noise over the largest part of one participant in a sum.
        mechanisms: names of those that will do; empty: any.
    """

    require: bool = True
    max_epsilon: float = math.inf
    max_delta: float = 1.0
    min_noise_multiplier: float = 0.0
    mechanisms: tuple[str, ...] = ()

    def objection(self, task: Task) -> str | None:
        """Why a task's terms will not do; None if they will."""
        terms = task.privacy
        if self.require and (task.kind is TaskKind.EVALUATE or task.evaluate):
            return "the task reports metrics, which privacy terms do not cover"
        if terms is None:
            return "the run has no privacy terms, and they are required" if self.require else None
        return self._objection(terms)

    def _objection(self, terms: PrivacyTerms) -> str | None:
        if not terms.epsilon <= self.max_epsilon:
            return f"the run's epsilon is {terms.epsilon:g}, at most {self.max_epsilon:g} allowed"
        if not terms.delta <= self.max_delta:
            return f"the run's delta is {terms.delta:g}, at most {self.max_delta:g} allowed"
        if not terms.noise_multiplier >= self.min_noise_multiplier:
            return f"the noise multiplier is {terms.noise_multiplier:g}, at least {self.min_noise_multiplier:g} wanted"
        if self.mechanisms and terms.mechanism not in self.mechanisms:
            return f"the mechanism is {terms.mechanism}, allowed are {', '.join(self.mechanisms)}"
        return None
