"""The model of a statistics run: the results of its rounds so far, as float64 tensors of integers.

=============================  ===========  =====================================================================
tensor                         shape        meaning
=============================  ===========  =====================================================================
``participants``               (rounds,)    participants in the sum of each round
``rows``                       (rounds, 2)  rows of all participants, limbs; they must be the same in each round
``numeric/present``            (columns,)   rows with a value; -1: suppressed
``numeric/missing``            (columns,)   rows without one; -1: suppressed
``numeric/range``              (columns, 3) exponent k, lower and upper edge in units of the resolution 2^(k - 52)
``numeric/sum``                (columns, 5) sum in units of the resolution, limbs
``numeric/squares``            (columns, 8) sum of squares in units of the resolution squared, limbs
``numeric/histogram``          (columns, b) rows of each cell of the range; -1: suppressed
``numeric/quantiles``          (columns,    edges of the cell of each quantile, in units of the resolution, and the
                               shares, 3)   1 if it may not be cut again; equal edges: suppressed
``groups/present``             (columns, g) rows with a value in each group of ``by``; -1: suppressed
``groups/sum``                 (columns,    their sum and sum of squares, as of the whole column; 0 where suppressed
``groups/squares``             g, 5 or 8)
``categories``                 (cells,)     rows of each level, of other values, without a value; -1: suppressed
``answer``                     (n,)         0: the element range of participants' answers
=============================  ===========  =====================================================================

With noise the model is that of ``noised.noised_shapes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from atoll.statistics.blocks import Shape, answer_size, category_cells
from atoll.statistics.grid import Range
from atoll.statistics.limbs import COUNT_LIMBS, SQUARE_LIMBS, SUM_LIMBS, Floats
from atoll.statistics.noised import ANSWER, noised_shapes
from atoll.wire.statistics_query import StatisticsQuery


def state_shapes(query: StatisticsQuery) -> dict[str, Shape]:
    """The tensors of the model, float64, in their order."""
    if query.noised is not None:
        return noised_shapes(query)
    columns, shares = len(query.numeric), len(query.shares)
    shapes: dict[str, Shape] = {
        "participants": (query.rounds,),
        "rows": (query.rounds, COUNT_LIMBS),
        "numeric/present": (columns,),
        "numeric/missing": (columns,),
        "numeric/range": (columns, 3),
        "numeric/sum": (columns, SUM_LIMBS),
        "numeric/squares": (columns, SQUARE_LIMBS),
        "numeric/histogram": (columns, query.bins),
        "numeric/quantiles": (columns, shares, 3),
        "groups/present": (columns, query.groups),
        "groups/sum": (columns, query.groups, SUM_LIMBS),
        "groups/squares": (columns, query.groups, SQUARE_LIMBS),
        "categories": (category_cells(query),),
        ANSWER: (answer_size(query),),
    }
    return {name: shape for name, shape in shapes.items() if 0 not in shape}


def first_state(query: StatisticsQuery) -> dict[str, Floats]:
    """The initial model: zeros."""
    return {name: np.zeros(shape) for name, shape in state_shapes(query).items()}


@dataclass(frozen=True)
class State:
    """Reads the tensors of a statistics run's model."""

    query: StatisticsQuery
    tensors: Mapping[str, Floats]

    @property
    def open_columns(self) -> list[int]:
        """The numeric columns that are not suppressed."""
        if not self.query.numeric:
            return []
        return [int(column) for column in np.flatnonzero(self.tensors["numeric/present"] > 0)]

    def range_of(self, column: int) -> Range:
        """The range of a numeric column, once the first round has found it."""
        return Range(*map(int, self.tensors["numeric/range"][column]))

    def cell_of(self, column: int, share: int) -> tuple[int, int]:
        """Lower and upper edge of a quantile's cell; equal if it is suppressed."""
        low, high, _ = map(int, self.tensors["numeric/quantiles"][column, share])
        return low, high

    def narrows(self, column: int, share: int) -> bool:
        """Whether the cell of a quantile is released, and may be cut again."""
        low, high, final = map(int, self.tensors["numeric/quantiles"][column, share])
        return low < high and not final
