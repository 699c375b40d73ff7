"""What you write: a participant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.client.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.client.model import Model
    from atoll.client.task import Task
    from atoll.client.update import Evaluation, Update


class Participant:
    """Trains on its own data when asked.

    Write ``fit``; write ``evaluate`` too if there is data to evaluate on. Both run in a thread of their own, one at a
    time, so they may take as long as the deadline allows (``task.remaining_s``, ``task.should_stop``).

    ``examples`` is how many examples it trains on: the weight that it declares to the server, which bounds the weight
    of its updates. Set it on the class, on the instance, or as a property.
    """

    examples: int = 1

    def fit(self, model: Model, task: Task) -> Update:
        """Train from ``model`` and return the local weights with the number of examples trained on."""
        raise NotImplementedError(f"{type(self).__name__} has no fit method")

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        """Measure ``model`` on the participant's own data."""
        raise NotImplementedError(f"{type(self).__name__} has no evaluate method")

    @property
    def can_evaluate(self) -> bool:
        """Whether the server may ask for evaluations: by default, whether ``evaluate`` is written."""
        return type(self).evaluate is not Participant.evaluate

    def prepare(self, state: Path) -> None:
        """Called once before the first task, with the directory that keeps what the participant must not forget."""

    def objection(self, task: Task) -> str | None:  # noqa: ARG002  # for those who write it
        """Why this participant does not want a task that its policy allows; None if it does. Asked before training."""
        return None

    def close(self) -> None:
        """Called once when the session is over; frees what the participant holds."""


def declared_examples(participant: Participant) -> int:
    """The weight to declare.

    Raises:
        UsageError: if ``examples`` is not a whole number of at least 1.
    """
    value = participant.examples
    count = value() if callable(value) else value
    if isinstance(count, bool) or not hasattr(count, "__index__") or int(count) < 1:
        raise UsageError(f"{type(participant).__name__}.examples is {count!r}; a whole number of at least 1 is needed")
    return int(count)
