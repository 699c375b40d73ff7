"""The meaning of an answer's elements in each round, and how blocks of numbers become one vector.

=======  ==========================================================================================
round    blocks of an answer
=======  ==========================================================================================
each     ``rows``: rows of the table
0        ``present``, ``missing``: rows with and without a value, for each numeric column;
         ``octaves``: 1 for each octave that has a value; ``cells``: rows of each category;
         ``holders``, ``cell_holders``: 1 if this participant has such a row
         ``group_present``, ``group_holders``: the same of each column in each group of ``by``
1        ``sum``, ``squares`` of the values on the grid, for each numeric column;
         ``bins``, ``bin_holders``: rows of each cell of the histogram
         ``group_sum``, ``group_squares``: ``sum`` and ``squares`` of each group of ``by``
2 ...    ``inner``: rows of each part of the cell in which a quantile lies; ``below``: rows below that cell
=======  ==========================================================================================

Numbers that may exceed ``limbs.MAX_ABS`` are stored as limbs, along the last axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from atoll.statistics.grid import OCTAVE_CELLS
from atoll.statistics.limbs import COUNT_LIMBS, SQUARE_LIMBS, SUM_LIMBS, Floats
from atoll.wire.statistics_query import CategoryColumn, StatisticsQuery

Shape = tuple[int, ...]
OTHER_AND_MISSING = 2
"""Extra cells of a category column: rows with other values, and rows without a value."""


def blocks_of(query: StatisticsQuery, number: int) -> dict[str, Shape]:
    """The blocks of an answer in round ``number``, from 0, in their order."""
    columns, cells, groups = len(query.numeric), category_cells(query), query.groups
    found: dict[str, Shape] = {"rows": (COUNT_LIMBS,)}
    if number == 0:
        found |= {
            "present": (columns, COUNT_LIMBS),
            "missing": (columns, COUNT_LIMBS),
            "holders": (columns,),
            "octaves": (columns, OCTAVE_CELLS),
            "cells": (cells, COUNT_LIMBS),
            "cell_holders": (cells,),
            "group_present": (columns, groups, COUNT_LIMBS),
            "group_holders": (columns, groups),
        }
    elif number == 1:
        found |= {
            "sum": (columns, SUM_LIMBS),
            "squares": (columns, SQUARE_LIMBS),
            "bins": (columns, query.bins, COUNT_LIMBS),
            "bin_holders": (columns, query.bins),
            "group_sum": (columns, groups, SUM_LIMBS),
            "group_squares": (columns, groups, SQUARE_LIMBS),
        }
    else:
        found |= {
            "inner": (columns, len(query.shares), query.bins, COUNT_LIMBS),
            "below": (columns, len(query.shares), COUNT_LIMBS),
        }
    return found


def category_cells(query: StatisticsQuery) -> int:
    """Number of cells of all category columns."""
    return sum(len(column.levels) + OTHER_AND_MISSING for column in query.categories)


def category_parts(query: StatisticsQuery) -> Iterator[tuple[CategoryColumn, slice]]:
    """Each category column, with the position of its cells."""
    start = 0
    for column in query.categories:
        stop = start + len(column.levels) + OTHER_AND_MISSING
        yield column, slice(start, stop)
        start = stop


def answer_size(query: StatisticsQuery) -> int:
    """Number of elements of an answer: that of the largest round."""
    return max(sum(map(math.prod, blocks_of(query, number).values())) for number in range(query.rounds))


def packed(query: StatisticsQuery, number: int, blocks: Mapping[str, Floats]) -> Floats:
    """The blocks of a round as the vector of an answer, padded with 0."""
    vector = np.zeros(answer_size(query))
    at = 0
    for name, shape in blocks_of(query, number).items():
        size = math.prod(shape)
        vector[at : at + size] = blocks[name].reshape(size)
        at += size
    return vector


def unpacked(query: StatisticsQuery, number: int, vector: Floats) -> dict[str, Floats]:
    """The blocks of a round, from an answer or a sum of answers."""
    return cut(vector, blocks_of(query, number))


def cut(vector: Floats, shapes: Mapping[str, Shape]) -> dict[str, Floats]:
    """The blocks of these shapes, which are consecutive in the vector."""
    found, at = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        found[name] = vector[at : at + size].reshape(shape)
        at += size
    return found
