"""Answers for statistics with noise: one round of sums over rows with a bounded norm.

Each row counts as a vector of these blocks; an answer is the sum over the rows of a table:

===========  =================  =================================================================================
block        shape              one row
===========  =================  =================================================================================
rows         (1,)               1
cells        (columns, b + 1)   1 in the cell of its value between the bounds, the last one if it has no value
first        (columns,)         u, its value on the scale on which the bounds are -1 and 1; 0 without a value
second       (columns,)         u squared
categories   (cells,)           1 in the cell of its level, of other values, or of none, for each column
===========  =================  =================================================================================

**Sensitivity.** In a numeric column a row has norm sqrt(1 + u^2 + u^4) <= sqrt(3), in a category column 1. So the norm
of a row over all its columns is at most ``row_norm`` = sqrt(1 + 3 numeric columns + category columns) for all values,
and the norm of the sum of n rows is at most n times that. u and u^2 are rounded to multiples of 2^-16. Rounding cannot
exceed 1, because 1 is such a multiple, so the bound holds for the rounded values too. The rounded values are exact on
the grid of every private round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from atoll.statistics.blocks import OTHER_AND_MISSING, Shape, category_cells, cut
from atoll.statistics.limbs import Floats
from atoll.statistics.tables import Columns
from atoll.wire.statistics_query import NoisedStatistics, StatisticsQuery

ANSWER = "answer"
PARTICIPANTS = "participants"
NOISE = "noise"
_UNIT = 2.0**16


def row_norm(query: StatisticsQuery) -> float:
    """Bound on the L2 norm of one row in an answer."""
    return math.sqrt(1 + 3 * len(query.numeric) + len(query.categories))


def noised_blocks(query: StatisticsQuery) -> dict[str, Shape]:
    """The blocks of an answer, in their order."""
    columns = len(query.numeric)
    return {
        "rows": (1,),
        "cells": (columns, query.bins + 1),
        "first": (columns,),
        "second": (columns,),
        "categories": (category_cells(query),),
    }


def noised_shapes(query: StatisticsQuery) -> dict[str, Shape]:
    """Shapes of the model: number of answers, standard deviation of each sum's noise, and the sums (0 at first)."""
    return {PARTICIPANTS: (1,), NOISE: (1,), ANSWER: (noised_size(query),)}


def noised_size(query: StatisticsQuery) -> int:
    """Number of elements of an answer."""
    return sum(map(math.prod, noised_blocks(query).values()))


def noised_answer(query: StatisticsQuery, noised: NoisedStatistics, columns: Columns) -> Floats:
    """The answer for one table.

    Args:
        query: the requested figures.
        noised: its bounds.
        columns: of the table.
    """
    cells, first, second = np.zeros((len(query.numeric), query.bins + 1)), [], []
    for column, (values, (low, high)) in enumerate(zip(columns.values, noised.bounds, strict=True)):
        scaled = scaled_to(values, low, high)
        places = np.minimum(((scaled + 1) / 2 * query.bins).astype(np.int64), query.bins - 1)
        cells[column, :-1] = np.bincount(places, minlength=query.bins)
        cells[column, -1] = columns.rows - values.size
        first.append(float((np.rint(scaled * _UNIT) / _UNIT).sum()))
        second.append(float((np.rint(scaled * scaled * _UNIT) / _UNIT).sum()))
    sizes = [len(column.levels) + OTHER_AND_MISSING for column in query.categories]
    counts = [np.bincount(places, minlength=size) for places, size in zip(columns.places, sizes, strict=True)]
    return np.concatenate([[columns.rows], cells.ravel(), first, second, *counts]).astype(np.float64)


def scaled_to(values: Floats, low: float, high: float) -> Floats:
    """The values on the scale on which the bounds are -1 and 1; values beyond are clipped."""
    middle, half = (low + high) / 2, (high - low) / 2
    return np.clip((np.clip(values, low, high) - middle) / half, -1.0, 1.0)


def release_noised(tensors: Mapping[str, Floats], answers: int, divisor: int, noise: float) -> None:
    """Turn the noised mean of a round's answers into their noised sum, in place. Noise on other tensors is discarded.

    Args:
        tensors: the model before the round, plus the noised mean.
        answers: number of answers in the sum.
        divisor: by which the sum was divided.
        noise: standard deviation of the noise on each element of the sum.
    """
    tensors[ANSWER][:] *= divisor
    tensors[PARTICIPANTS][:] = answers
    tensors[NOISE][:] = noise


def noised_sums(query: StatisticsQuery, tensors: Mapping[str, Floats]) -> dict[str, Floats]:
    """The released sums by block."""
    return cut(tensors[ANSWER], noised_blocks(query))
