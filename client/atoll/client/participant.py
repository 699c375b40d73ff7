"""The base class of participants, which users write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.client.errors import UsageError
from atoll.client.task import TaskKind

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.client.model import Model
    from atoll.client.task import Task
    from atoll.client.update import Evaluation, Update
    from atoll.statistics import Table
    from atoll.wire.privacy_terms import PrivacyTerms
    from atoll.wire.statistics_query import StatisticsQuery


class Participant:
    """Trains on its own data when asked.

    Write ``fit``, and ``evaluate`` if there is data to evaluate on. Both run in a separate thread, one at a time, so
    they may take as long as the deadline allows (``task.remaining_s``, ``task.should_stop``).

    ``examples`` is the number of examples to train on: the declared weight, which bounds the weight of every update.
    Set it on the class, on the instance, or as a property.

    ``min_rows`` is the smallest table that takes part in statistics: with fewer rows the participant fails the task.
    The operator chooses which cells are too small to release; ``min_cell_rows`` and ``min_participants`` are the lowest
    ``min_rows`` and ``min_participants`` of a job that this participant answers. It declines others. In a private run
    ``min_cell_rows`` is the least standard deviation of the noise on a count of rows.
    """

    examples: int = 1
    min_rows: int = 10
    min_cell_rows: int = 5
    min_participants: int = 3

    def fit(self, model: Model, task: Task) -> Update:
        """Train from ``model`` and return the local weights with the number of examples trained on."""
        raise NotImplementedError(f"{type(self).__name__} has no fit method")

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        """Measure ``model`` on the participant's own data."""
        raise NotImplementedError(f"{type(self).__name__} has no evaluate method")

    def table(self) -> Table:
        """The rows for runs of statistics: a mapping from names to columns, a DataFrame, or a pyarrow Table.

        Called in each round of such a run; must return the same rows. The SDK sends only sums over its columns. A
        participant without this method declines. docs/statistics.md lists what is sent.
        """
        raise NotImplementedError(f"{type(self).__name__} has no table method")

    @property
    def has_table(self) -> bool:
        """Whether the participant takes part in statistics; by default, whether the class has ``table``."""
        return type(self).table is not Participant.table

    @property
    def can_fit(self) -> bool:
        """Whether the class or the instance has a ``fit``."""
        return getattr(self.fit, "__func__", None) is not Participant.fit

    @property
    def can_evaluate(self) -> bool:
        """Whether the server may ask for evaluations; by default, whether the class has ``evaluate``."""
        return type(self).evaluate is not Participant.evaluate

    def prepare(self, state: Path) -> None:
        """Called once before the first task, with the state directory, for data that must survive a restart."""

    def objection(self, task: Task) -> str | None:  # noqa: ARG002  # for subclasses
        """The reason to decline a task that the policy allows; None to accept it. Called before training."""
        return None

    def close(self) -> None:
        """Called once when the session ends; release resources here."""


def objection_of(participant: Participant, task: Task) -> str | None:
    """The participant's own reason to decline a task; None to accept it."""
    if task.kind is TaskKind.STATISTICS and not participant.has_table:
        return "this participant gives no table for statistics (Participant.table)"
    if task.kind is TaskKind.TRAIN and participant.has_table and not participant.can_fit:
        return "this participant gives a table for statistics, and trains nothing (it has no fit)"
    if task.statistics is not None and (objection := _too_fine(participant, task, task.statistics)) is not None:
        return objection
    return participant.objection(task)


def _too_fine(participant: Participant, task: Task, query: StatisticsQuery) -> str | None:
    """Why a query would release cells that are too small for this participant; None if it does not."""
    if (query.noised is None) != (task.privacy is None):
        return "noised statistics need privacy terms, and the reverse; the server sent only one of them"
    for key, asked, attribute in (
        ("min_rows", query.min_rows, "min_cell_rows"),
        ("min_participants", query.min_participants, "min_participants"),
    ):
        lowest = getattr(participant, attribute)
        if asked < lowest and (query.noised is None or key != "min_rows"):
            return f"statistics.{key} is {asked}; this participant answers from {lowest} (Participant.{attribute})"
    return None if task.privacy is None else _too_little_noise(participant, task.privacy)


def _too_little_noise(participant: Participant, terms: PrivacyTerms) -> str | None:
    """Why the noise on a count would not hide a cell that is too small for this participant; None if it does."""
    noise = terms.noise_multiplier * terms.clip_norm
    if noise >= participant.min_cell_rows:
        return None
    return (
        f"the noise on a count is {noise:.3g} rows; this participant answers from {participant.min_cell_rows} "
        "(Participant.min_cell_rows): privacy.epsilon must be smaller"
    )


def declared_examples(participant: Participant) -> int:
    """The weight that a participant declares.

    Raises:
        UsageError: if ``examples`` is not an integer of at least 1.
    """
    value = participant.examples
    count = value() if callable(value) else value
    if isinstance(count, bool) or not hasattr(count, "__index__") or int(count) < 1:
        raise UsageError(
            f"{type(participant).__name__}.examples is {count!r}; a whole number of at least 1 is needed: the "
            "rows that fit trains on"
        )
    return int(count)
