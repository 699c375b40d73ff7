"""A participant's answers in a statistics run: sums over its table, computed by the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.client.errors import PublicError, UpdateError
from atoll.client.privacy_demand import is_row_private
from atoll.client.update import Update
from atoll.statistics import Answerer, TableError, state_shapes

if TYPE_CHECKING:
    from atoll.client.model import Model
    from atoll.client.participant import Participant
    from atoll.client.task import Task


def answer(participant: Participant, model: Model, task: Task) -> Update:
    """The answer to one round, as an update.

    Raises:
        PublicError: if the table has too few rows or cannot answer; the text names columns but no values.
        UpdateError: if the server's model does not match the query.
    """
    query = task.statistics
    if query is None:
        raise UpdateError("the task asks for no statistics")
    if {name: array.shape for name, array in model.items()} != state_shapes(query):
        raise UpdateError("the model of the round is not that of its query; server and client differ in version")
    try:
        answerer = Answerer(query, participant.table())
    except TableError as error:
        raise PublicError(str(error)) from error
    if answerer.rows < participant.min_rows:
        raise PublicError(
            f"the table has fewer rows than this participant's min_rows, {participant.min_rows}: leave it out of the "
            "statistics, or lower its min_rows"
        )
    if is_row_private(task) and query.noised is not None and answerer.rows > query.noised.max_rows:
        raise PublicError(
            f"the table has more rows than the run accepts from one participant, statistics.max_rows = "
            f"{query.noised.max_rows}: the operator must raise it"
        )
    return Update(delta=answerer.answer(task.round, model), weight=1)
