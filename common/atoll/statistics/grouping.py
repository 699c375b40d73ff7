"""Counts and sums of the rows of each label: computed by participants, and filtered for release."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

import numpy as np
import numpy.typing as npt

from atoll.statistics.blocks import category_parts
from atoll.statistics.grid import exact_squares, exact_sum
from atoll.statistics.hiding import SUPPRESSED, Hiding
from atoll.statistics.limbs import (
    SQUARE_LIMBS,
    SUM_LIMBS,
    Floats,
    counts_from_limbs,
    counts_to_limbs,
    to_limbs,
)
from atoll.statistics.tables import Columns
from atoll.wire.statistics_query import StatisticsQuery

Integers = npt.NDArray[np.int64]


class Groups:
    """The rows of a table by the label column of a query; no groups if it has no ``by``.

    Args:
        query: the requested figures.
        columns: of the table.
    """

    def __init__(self, query: StatisticsQuery, columns: Columns) -> None:
        self._size = query.groups
        self._labels = [np.zeros(0, np.int64) for _ in columns.numbers]
        if query.by:
            labels = columns.places[[column.name for column in query.categories].index(query.by)]
            self._labels = [labels[~np.isnan(values)] for values in columns.numbers]

    def counts(self) -> dict[str, Floats]:
        """The blocks of the first round."""
        present = [np.bincount(labels, minlength=self._size)[: self._size] for labels in self._labels]
        counts = np.array(present, np.int64).reshape(len(present), self._size)
        return {"group_present": counts_to_limbs(counts), "group_holders": (counts > 0).astype(np.float64)}

    def sums(self, whole: Mapping[int, Integers]) -> dict[str, Floats]:
        """The blocks of the second round, for the columns whose grid values are given."""
        columns = len(self._labels)
        sums = np.zeros((columns, self._size, SUM_LIMBS))
        squares = np.zeros((columns, self._size, SQUARE_LIMBS))
        for column, values in whole.items():
            for group in range(self._size):
                part = values[self._labels[column] == group]
                sums[column, group] = to_limbs(exact_sum(part), SUM_LIMBS)
                squares[column, group] = to_limbs(exact_squares(part), SQUARE_LIMBS)
        return {"group_sum": sums, "group_squares": squares}


def release_group_counts(
    query: StatisticsQuery, hiding: Hiding, tensors: MutableMapping[str, Floats], blocks: Mapping[str, Floats]
) -> None:
    """Release the row counts of each group that may be released, after the counts of categories and columns.

    The sum over hidden groups follows from the figures of the whole column. So hidden groups must hide each other, as
    cells of a histogram do. Groups whose rows the category table hides are hidden here in every column, because their
    present and missing values would add up to those rows.
    """
    part = next(part for column, part in category_parts(query) if column.name == query.by)
    hidden = tensors["categories"][part] == SUPPRESSED
    counts = counts_from_limbs(blocks["group_present"])
    for column in range(len(query.numeric)):
        if tensors["numeric/present"][column] == SUPPRESSED:
            tensors["groups/present"][column] = SUPPRESSED
        else:
            released = hiding.released(counts[column], blocks["group_holders"][column], hidden)
            tensors["groups/present"][column] = released


def release_group_sums(tensors: MutableMapping[str, Floats], blocks: Mapping[str, Floats]) -> None:
    """Release the sums of the groups whose row counts are released."""
    shown = (tensors["groups/present"] > 0)[..., np.newaxis]
    tensors["groups/sum"][:] = np.where(shown, blocks["group_sum"], 0)
    tensors["groups/squares"][:] = np.where(shown, blocks["group_squares"], 0)
