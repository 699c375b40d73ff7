"""Train participants together: one call computes the updates of many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from atoll.client import Evaluation, Model, Participant, Task, Update
from atoll.simulation.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

Trained = Update | Exception
"""The update of a participant, or the error of the joint training."""


class AlreadyTrained(Participant):
    """A participant whose ``fit`` has already run.

    Args:
        participant: runs all other methods.
        trained: the result or error of ``fit``.
    """

    def __init__(self, participant: Participant, trained: Trained) -> None:
        self.examples = participant.examples
        self._participant = participant
        self._trained = trained

    @property
    def can_evaluate(self) -> bool:
        """See ``Participant``."""
        return self._participant.can_evaluate

    def fit(self, model: Model, task: Task) -> Update:
        """See ``Participant``."""
        del model, task
        if isinstance(self._trained, Exception):
            raise self._trained
        return self._trained

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        """See ``Participant``."""
        return self._participant.evaluate(model, task)


def trained_together(members: Sequence[Participant], model: Model, tasks: Sequence[Task]) -> Sequence[Trained]:
    """The updates of participants of one class, or for each the error of the joint call.

    Raises:
        SetupError: if their class cannot train them together.
    """
    kinds = {type(one) for one in members}
    together: Callable[..., Sequence[Any]] | None = getattr(type(members[0]), "fit_together", None)
    if len(kinds) > 1 or together is None:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise SetupError(
            f"batched: participants are {names}, which cannot be trained together; derive them from one class with "
            "fit_together, such as atoll.client.torch_batched.BatchedTorchParticipant"
        )
    try:
        trained = list(together(members, model, tasks))
    except Exception as error:  # noqa: BLE001 - an error of participants' code is each member's failure
        return [error] * len(members)
    if len(trained) != len(members):
        raise SetupError(
            f"batched: {type(members[0]).__name__}.fit_together returned {len(trained)} updates for {len(members)} "
            "participants; return one for each, in their order"
        )
    return trained
