"""Turn the sum of all answers of a round into the next model, without cells that are too small.

The sum itself is not kept: the parts that the next round needs, and those that may be released, move into the other
tensors, and the answer's elements are reset to 0.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np
import numpy.typing as npt

from atoll.statistics.blocks import category_parts, unpacked
from atoll.statistics.checks import check_sums
from atoll.statistics.errors import AnswersError
from atoll.statistics.grid import range_of
from atoll.statistics.grouping import release_group_counts, release_group_sums
from atoll.statistics.hiding import SUPPRESSED, Hiding
from atoll.statistics.limbs import Floats, counts_from_limbs, from_limbs
from atoll.statistics.narrowing import Interval, narrowed
from atoll.statistics.noised import ANSWER
from atoll.statistics.state import State
from atoll.wire.statistics_query import StatisticsQuery

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Disclosure:
    """Computes the released model of one round from the mean of its answers."""

    query: StatisticsQuery

    def apply(self, number: int, tensors: MutableMapping[str, Floats], participants: int) -> None:
        """Change the model of round ``number`` in place.

        Args:
            number: the round, from 0.
            tensors: the model before the round, except for ``answer``, the mean of the participants' answers.
            participants: number of answers in the mean.

        Raises:
            AnswersError: if the round's number of rows differs from the first round's, or its sums contradict each
                other.
        """
        totals = np.rint(tensors[ANSWER] * participants)  # sums of integers below 2^53, so exact
        tensors[ANSWER][:] = 0
        blocks = unpacked(self.query, number, totals)
        tensors["participants"][number] = participants
        tensors["rows"][number] = blocks["rows"]
        self._check_same_rows(number, tensors)
        check_sums(self.query, number, blocks, tensors)
        if number == 0:
            self._counts(tensors, blocks)
        elif number == 1:
            self._moments(tensors, blocks)
        else:
            self._refined(tensors, counts_from_limbs(blocks["inner"]), counts_from_limbs(blocks["below"]))

    @property
    def _hiding(self) -> Hiding:
        return Hiding(self.query.min_rows, self.query.min_participants)

    def _check_same_rows(self, number: int, tensors: Mapping[str, Floats]) -> None:
        rows = [from_limbs(tensors["rows"][one]) for one in (0, number)]
        members = [int(tensors["participants"][one]) for one in (0, number)]
        if rows[0] != rows[1] or members[0] != members[1]:
            raise AnswersError(
                f"round {number + 1} counted {rows[1]} rows of {members[1]} participants, round 1 {rows[0]} of "
                f"{members[0]}: participants or their tables changed during the run; set cohort.size to the "
                "number of participants, or name them in cohort.required, and run it again"
            )

    def _counts(self, tensors: MutableMapping[str, Floats], blocks: Mapping[str, Floats]) -> None:
        cells, holders = counts_from_limbs(blocks["cells"]), blocks["cell_holders"]
        for _, part in category_parts(self.query):
            tensors["categories"][part] = self._hiding.released(cells[part], holders[part])
        present, missing = counts_from_limbs(blocks["present"]), counts_from_limbs(blocks["missing"])
        for column, count in enumerate(present):
            if self._hiding.too_small(int(count), blocks["holders"][column]):
                tensors["numeric/present"][column] = tensors["numeric/missing"][column] = SUPPRESSED
                continue
            found = range_of(blocks["octaves"][column] > 0)
            tensors["numeric/present"][column] = count
            tensors["numeric/missing"][column] = missing[column]
            tensors["numeric/range"][column] = (found.exponent, found.low, found.high)
        if self.query.by:
            release_group_counts(self.query, self._hiding, tensors, blocks)

    def _moments(self, tensors: MutableMapping[str, Floats], blocks: Mapping[str, Floats]) -> None:
        state = State(self.query, tensors)
        if self.query.by:
            release_group_sums(tensors, blocks)
        counts = counts_from_limbs(blocks["bins"])
        for column in state.open_columns:
            tensors["numeric/sum"][column] = blocks["sum"][column]
            tensors["numeric/squares"][column] = blocks["squares"][column]
            tensors["numeric/histogram"][column] = self._hiding.released(counts[column], blocks["bin_holders"][column])
            found, rows = state.range_of(column), int(tensors["numeric/present"][column])
            for share in range(len(self.query.shares)):
                rank = rank_of(self.query.shares[share], rows)
                if self._may_be_found(share, rank, rows):
                    whole = Interval(found.low, found.high)
                    tensors["numeric/quantiles"][column, share] = self._narrowed(whole, share, rank, counts[column])

    def _refined(self, tensors: MutableMapping[str, Floats], inner: Integers, below: Integers) -> None:
        state = State(self.query, tensors)
        for column in state.open_columns:
            rows = int(tensors["numeric/present"][column])
            for share in range(len(self.query.shares)):
                if state.narrows(column, share):
                    cell = Interval(*state.cell_of(column, share))
                    rank = rank_of(self.query.shares[share], rows) - int(below[column, share])
                    narrowed = self._narrowed(cell, share, rank, inner[column, share])
                    tensors["numeric/quantiles"][column, share] = narrowed

    def _narrowed(self, cell: Interval, share: int, rank: int, parts: Integers) -> tuple[int, int, int]:
        """The quantile's cell in the next model, and 1 if no later round may narrow it.

        Minimum and maximum, which a job requests explicitly, narrow to a single row.
        """
        enough = 1 if self.query.shares[share] in {0.0, 1.0} else self.query.min_rows
        return narrowed(cell, rank, parts, enough)

    def _may_be_found(self, share: int, rank: int, rows: int) -> bool:
        """Whether enough rows lie on each side of a quantile; always True for minimum and maximum."""
        if self.query.shares[share] in {0.0, 1.0}:
            return True
        return min(rank, rows - rank + 1) >= self.query.min_rows


def rank_of(share: float, rows: int) -> int:
    """The rank, from 1, of the value that is a quantile: numpy's method "inverted_cdf"."""
    return max(1, ceil(Fraction(repr(share)) * rows))
