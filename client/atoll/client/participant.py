"""The base class of participants, which users write."""

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

    Write ``fit``, and ``evaluate`` if there is data to evaluate on. Both run in a separate thread, one at a time, so
    they may take as long as the deadline allows (``task.remaining_s``, ``task.should_stop``).

    ``examples`` is the number of examples to train on: the declared weight, which bounds the weight of every update.
    Set it on the class, on the instance, or as a property.
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
        """Whether the server may ask for evaluations; by default, whether the class has ``evaluate``."""
        return type(self).evaluate is not Participant.evaluate

    def prepare(self, state: Path) -> None:
        """Called once before the first task, with the state directory, for data that must survive a restart."""

    def objection(self, task: Task) -> str | None:  # noqa: ARG002  # for subclasses
        """A reason to decline a task that the policy allows; None to accept it. Called before training."""
        return None

    def close(self) -> None:
        """Called once when the session ends; release resources here."""


def declared_examples(participant: Participant) -> int:
    """The weight that a participant declares.

    Raises:
        UsageError: if ``examples`` is not a whole number of at least 1.
    """
    value = participant.examples
    count = value() if callable(value) else value
    if isinstance(count, bool) or not hasattr(count, "__index__") or int(count) < 1:
        raise UsageError(f"{type(participant).__name__}.examples is {count!r}; a whole number of at least 1 is needed")
    return int(count)
