"""Check that a round's sums are possible for real tables, to detect a faulty participant before anything is released.

A participant that invents a consistent table is not detected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from atoll.statistics.blocks import category_parts
from atoll.statistics.errors import AnswersError
from atoll.statistics.limbs import Floats, counts_from_limbs, from_limbs
from atoll.statistics.state import State
from atoll.wire.statistics_query import StatisticsQuery

_COUNTS = ("rows", "present", "missing", "cells", "bins", "inner", "below", "group_present")
_HOLDERS = ("holders", "cell_holders", "bin_holders", "octaves", "group_holders")


def check_sums(
    query: StatisticsQuery, number: int, blocks: Mapping[str, Floats], tensors: Mapping[str, Floats]
) -> None:
    """Check the sums of round ``number``.

    Args:
        query: the requested figures.
        number: the round, from 0.
        blocks: the sums of its answers.
        tensors: the model at the start of the round, with this round's ``rows`` and ``participants``.

    Raises:
        AnswersError: naming the sum that is impossible.
    """
    rows, participants = from_limbs(tensors["rows"][number]), int(tensors["participants"][number])
    problems = [*_bounds(blocks, rows, participants)]
    if not problems:
        problems = [*(_first(query, blocks, rows) if number == 0 else _later(query, number, blocks, tensors))]
    if problems:
        raise AnswersError(
            f"the sums of round {number + 1} cannot come from tables: {problems[0]}. A participant's answer was not "
            "made by its SDK from one table; find that participant with runs of fewer ones, and run again without it"
        )


def _bounds(blocks: Mapping[str, Floats], rows: int, participants: int) -> Iterator[str]:
    for name, sums in blocks.items():
        if name in _COUNTS and sums.size:
            found, most, unit = counts_from_limbs(sums), rows, "rows"
        elif name in _HOLDERS and sums.size:
            found, most, unit = sums.astype(np.int64), participants, "participants"
        else:
            continue
        if found.min() < 0 or found.max() > most:
            yield f"{name!r} counts {unit} outside 0 to {most}"


def _first(query: StatisticsQuery, blocks: Mapping[str, Floats], rows: int) -> Iterator[str]:
    present, missing = counts_from_limbs(blocks["present"]), counts_from_limbs(blocks["missing"])
    for column, name in enumerate(query.numeric):
        if present[column] + missing[column] != rows:
            yield f"column {name!r} has rows that neither have a value nor miss one"
        if (present[column] > 0) != bool(blocks["octaves"][column].any()):
            yield f"column {name!r} has values without a range"
        if query.by and counts_from_limbs(blocks["group_present"][column]).sum() != present[column]:
            yield f"the groups of column {name!r} do not add up to its values"
    cells = counts_from_limbs(blocks["cells"])
    for category, part in category_parts(query):
        if cells[part].sum() != rows:
            yield f"the categories of column {category.name!r} do not add up to the rows"


def _later(
    query: StatisticsQuery, number: int, blocks: Mapping[str, Floats], tensors: Mapping[str, Floats]
) -> Iterator[str]:
    state = State(query, tensors)
    for column in state.open_columns:
        name, present = query.numeric[column], int(tensors["numeric/present"][column])
        if number == 1:
            total, squares = from_limbs(blocks["sum"][column]), from_limbs(blocks["squares"][column])
            if counts_from_limbs(blocks["bins"][column]).sum() != present:
                yield f"the histogram of column {name!r} does not add up to its values"
            found = state.range_of(column)
            if not present * found.low <= total <= present * found.high:
                yield f"the sum of column {name!r} is out of its range"
            if present * squares < total * total:
                yield f"sum and sum of squares of column {name!r} contradict each other"
            if query.by and not _adds_up(blocks, column, total, squares):
                yield f"the sums of the groups of column {name!r} do not add up to its own"
            continue
        inside = counts_from_limbs(blocks["inner"][column]).sum(axis=-1) + counts_from_limbs(blocks["below"][column])
        if (inside > present).any():
            yield f"a quantile's cell of column {name!r} has more rows than the column"


def _adds_up(blocks: Mapping[str, Floats], column: int, total: int, squares: int) -> bool:
    sums = sum(from_limbs(limbs) for limbs in blocks["group_sum"][column])
    return sums == total and sum(from_limbs(limbs) for limbs in blocks["group_squares"][column]) == squares
