"""A participant's answer in one round: sums over its own table, as the vector of an update."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from atoll.statistics.blocks import OTHER_AND_MISSING, packed
from atoll.statistics.columns import Table
from atoll.statistics.grid import OCTAVE_CELLS, cells_of, exact_squares, exact_sum, octave_presence, on_grid
from atoll.statistics.grouping import Groups
from atoll.statistics.limbs import (
    COUNT_LIMBS,
    SQUARE_LIMBS,
    SUM_LIMBS,
    Floats,
    counts_to_limbs,
    to_limbs,
)
from atoll.statistics.noised import ANSWER, noised_answer
from atoll.statistics.state import State
from atoll.statistics.tables import columns_of
from atoll.wire.statistics_query import StatisticsQuery

Integers = npt.NDArray[np.int64]


class Answerer:
    """Answers the rounds of one query from one table; reads the columns once.

    Args:
        query: the requested figures.
        table: the rows.

    Attributes:
        rows: number of rows.

    Raises:
        TableError: if the table lacks a column, columns have different lengths, or a value is not a number.
    """

    def __init__(self, query: StatisticsQuery, table: Table) -> None:
        self.query = query
        self._columns = columns_of(query, table)
        self.rows = self._columns.rows
        self._values, self._places = self._columns.values, self._columns.places
        self._groups = Groups(query, self._columns)
        self._missing = [self.rows - values.size for values in self._values]

    def answer(self, number: int, released: Mapping[str, Floats]) -> dict[str, Floats]:
        """The update of round ``number``, from 0: local - global of each tensor of the model.

        Args:
            number: the round.
            released: the model, with the results of earlier rounds.
        """
        zeros = {name: np.zeros(np.shape(tensor)) for name, tensor in released.items()}
        if self.query.noised is not None:
            return zeros | {ANSWER: noised_answer(self.query, self.query.noised, self._columns)}
        state = State(self.query, released)
        blocks = {"rows": np.array(to_limbs(self.rows, COUNT_LIMBS), np.float64)}
        if number == 0:
            blocks |= self._counts()
        elif number == 1:
            blocks |= self._moments(state)
        else:
            blocks |= self._inner(state)
        return zeros | {ANSWER: packed(self.query, number, blocks)}

    def _counts(self) -> dict[str, Floats]:
        present = np.array([values.size for values in self._values], np.int64)
        sizes = [len(column.levels) + OTHER_AND_MISSING for column in self.query.categories]
        cells = [np.bincount(places, minlength=size) for places, size in zip(self._places, sizes, strict=True)]
        rows = np.concatenate([np.empty(0, np.int64), *cells])
        octaves = [octave_presence(values) for values in self._values]
        return {
            "present": counts_to_limbs(present),
            "missing": counts_to_limbs(np.array(self._missing, np.int64)),
            "holders": (present > 0).astype(np.float64),
            "octaves": np.array(octaves, np.float64).reshape(-1, OCTAVE_CELLS),
            "cells": counts_to_limbs(rows),
            "cell_holders": (rows > 0).astype(np.float64),
            **self._groups.counts(),
        }

    def _moments(self, state: State) -> dict[str, Floats]:
        columns, bins = len(self._values), self.query.bins
        sums, squares = np.zeros((columns, SUM_LIMBS)), np.zeros((columns, SQUARE_LIMBS))
        cells, kept = np.zeros((columns, bins), np.int64), {}
        for column in state.open_columns:
            found = state.range_of(column)
            whole = kept[column] = self._on_grid(column, found.exponent)
            sums[column] = to_limbs(exact_sum(whole), SUM_LIMBS)
            squares[column] = to_limbs(exact_squares(whole), SQUARE_LIMBS)
            cells[column] = cells_of(whole, found.low, found.high, found.high, bins)
        held = (cells > 0).astype(np.float64)
        histograms = {"bins": counts_to_limbs(cells), "bin_holders": held}
        return {"sum": sums, "squares": squares, **histograms, **self._groups.sums(kept)}

    def _inner(self, state: State) -> dict[str, Floats]:
        columns, shares, bins = len(self._values), len(self.query.shares), self.query.bins
        cells, below = np.zeros((columns, shares, bins), np.int64), np.zeros((columns, shares), np.int64)
        for column in state.open_columns:
            found = state.range_of(column)
            whole = self._on_grid(column, found.exponent)
            for share in range(shares):
                if state.narrows(column, share):
                    low, high = state.cell_of(column, share)
                    cells[column, share] = cells_of(whole, low, high, found.high, bins)
                    below[column, share] = np.count_nonzero(whole < low)
        return {"inner": counts_to_limbs(cells), "below": counts_to_limbs(below)}

    def _on_grid(self, column: int, exponent: int) -> Integers:
        return on_grid(self._values[column], exponent)
