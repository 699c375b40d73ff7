"""``[statistics]``: the columns and figures of a run without a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field

from atoll.server.jobs.section import JobTable
from atoll.settings.section import Hint
from atoll.wire.errors import WireError
from atoll.wire.statistics_query import (
    MAX_BINS,
    MAX_CELL,
    MAX_COLUMNS,
    MAX_NOISED_ROWS,
    MAX_QUANTILES,
    MAX_REFINEMENTS,
    CategoryColumn,
    NoisedStatistics,
    StatisticsQuery,
)

_Texts = Annotated[tuple[str, ...], Field(strict=False)]  # TOML has lists
_Bounds = Annotated[tuple[float, float], Field(strict=False)]


class Statistics(JobTable):
    """Statistics of the participants' tables instead of a model: counts, moments, histograms, quantiles, categories.

    With this section, leave out `job.rounds`, `[aggregation]`, `[optimiser]` and `[evaluation]`, which follow from it,
    and `[model]`. Every member of the cohort must answer (`cohort.required = "all"`). [Statistics](statistics.md)
    describes the figures, the data that leaves a participant, and the data that the server sees.
    """

    numeric: Annotated[
        tuple[str, ...],
        Field(
            strict=False,
            max_length=MAX_COLUMNS,
            description="Columns of numbers: count, missing values, mean, variance, histogram, quantiles.",
        ),
        Hint(allowed="a list of column names", default="none"),
    ] = ()
    categories: Annotated[
        Mapping[str, _Texts],
        Field(
            description="Columns of categories, such as labels, with the values to count: `categories = { label = "
            '["benign", "malignant"] }`. Rows with other values are counted together.'
        ),
        Hint(allowed="a table: a list of values for each column", default="none"),
    ] = Field(default_factory=dict)
    by: Annotated[
        str,
        Field(
            description="One of `categories`: for each of its values, the count, mean and variance of each column of "
            "numbers are also computed. Not with `[privacy]`."
        ),
        Hint(default="none"),
    ] = ""
    bins: Annotated[
        int,
        Field(
            ge=2,
            le=MAX_BINS,
            description="Number of cells of a histogram over the column's range, and of parts into which a refinement "
            "cuts a cell.",
        ),
    ] = 32
    quantiles: Annotated[
        tuple[float, ...],
        Field(
            strict=False,
            max_length=MAX_QUANTILES,
            description="Quantiles to locate in a cell, as shares of the rows.",
        ),
        Hint(allowed="a list of numbers above 0 and below 1"),
    ] = (0.25, 0.5, 0.75)
    refinements: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_REFINEMENTS,
            description="Number of further rounds. Each narrows the cell of a quantile, by the factor `bins` if that "
            "leaves `min_rows` rows in it.",
        ),
    ] = 2
    minimum_and_maximum: Annotated[
        bool,
        Field(
            description="Also find the lowest and the highest value, in cells as narrow as those of quantiles. Each "
            "is the value of a single row, so use this only if that is not secret."
        ),
    ] = False
    min_rows: Annotated[
        int,
        Field(
            ge=1,
            le=MAX_CELL,
            description="Minimum number of rows of a released cell (column, category, part of a histogram) that is "
            "not empty. A quantile needs at least this many rows on either side and in its cell. Participants decline "
            "values below their own minimum, which is 5 by default.",
        ),
    ] = 5
    min_participants: Annotated[
        int,
        Field(
            ge=1,
            le=MAX_CELL,
            description="Minimum number of participants with rows in a released cell (column, category, part of a "
            "histogram); `cohort.size` must be at least this. Participants decline values below their own minimum, "
            "which is 3 by default.",
        ),
    ] = 3
    bounds: Annotated[
        Mapping[str, _Bounds],
        Field(
            description="With `[privacy]`: lower and upper bound of each column of numbers, from prior knowledge and "
            "never from the rows: `bounds = { age = [0.0, 120.0] }`. Values beyond a bound count as the bound."
        ),
        Hint(allowed="a table: two numbers for each column", default="none"),
    ] = Field(default_factory=dict)
    max_rows: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_NOISED_ROWS,
            description="With `[privacy]`: maximum number of rows of one participant. If the unit is a participant, "
            "this determines the noise, and the answer of a participant with more rows may be scaled down. If the "
            "unit is a row, a participant with more rows fails.",
        ),
        Hint(default="none"),
    ] = None

    @property
    def query(self) -> StatisticsQuery:
        """The query that is sent to participants."""
        return StatisticsQuery(
            self.numeric,
            tuple(CategoryColumn(name, tuple(levels)) for name, levels in self.categories.items()),
            self.bins,
            self.quantiles,
            self.minimum_and_maximum,
            self.refinements,
            self.min_rows,
            self.min_participants,
            self._noised,
            self.by,
        )

    @property
    def _noised(self) -> NoisedStatistics | None:
        if self.max_rows is None:
            return None
        return NoisedStatistics(tuple(self.bounds[name] for name in self.numeric if name in self.bounds), self.max_rows)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Refuse invalid queries: no columns, duplicate names, shares out of range, missing bounds."""
        for name in self.bounds:
            if name not in self.numeric:
                yield "bounds", f"{name!r} is not a column in statistics.numeric; leave it out"
        lacking = [name for name in self.numeric if name not in self.bounds]
        if lacking and self.max_rows is not None:
            yield (
                "bounds",
                f"column {lacking[0]!r} lacks its lower and upper bound: bounds = {{ {lacking[0]} = [0, 1] }}",
            )
            return
        try:
            _ = self.query
        except WireError as error:
            path, _, problem = str(error).removeprefix("statistics.").partition(": ")
            key = path.partition(".")[0]
            yield (key, problem) if path == key and key in type(self).model_fields else ("", str(error))
