"""The figures of columns, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll.statistics.errors import FindingsError


@dataclass(frozen=True)
class Quantile:
    """A quantile: the value with its rank (numpy's method "inverted_cdf") lies between ``low`` and ``high``.

    Attributes:
        share: share of the rows; 0: the minimum, 1: the maximum.
        low: lower edge of its cell; None if suppressed.
        high: upper edge of its cell; None if suppressed.
    """

    share: float
    low: float | None
    high: float | None

    @property
    def value(self) -> float | None:
        """The middle of the cell."""
        return None if self.low is None or self.high is None else (self.low + self.high) / 2


@dataclass(frozen=True)
class NumericErrors:
    """Standard errors of a column's figures from a private run's noise; None if there is no figure.

    Attributes:
        count: of the number of rows with a value.
        missing: of the number of rows without one.
        mean: of the mean.
        variance: of the variance.
        deviation: of the standard deviation.
        histogram: of each cell.
    """

    count: float
    missing: float
    mean: float | None
    variance: float | None
    deviation: float | None
    histogram: float


@dataclass(frozen=True)
class GroupFindings:
    """A numeric column over the rows of one label. Suppressed figures are None.

    Attributes:
        kind: "level"; "other" for rows with another value of the label column, "missing" for those without one.
        level: the label; empty for the other kinds.
        count: rows with a value.
        mean: as exact as that of the whole column.
        variance: with the divisor ``count - 1``.
        deviation: the standard deviation.
    """

    kind: str
    level: str
    count: int | None
    mean: float | None
    variance: float | None
    deviation: float | None


@dataclass(frozen=True)
class NumericFindings:
    """A numeric column over the rows of all participants. Suppressed figures are None.

    Attributes:
        name: of the column.
        count: rows with a value.
        missing: rows without one.
        resolution: distance between neighbouring values of the grid on which values were summed.
        mean: exact for the values on the grid, rounded once.
        variance: with the divisor ``count - 1``; as exact as the mean.
        deviation: the standard deviation, the root of the variance.
        edges: of the histogram's cells, one more than the number of cells.
        histogram: rows of each cell.
        quantiles: in the order of the job, between minimum and maximum if the job requests these.
        errors: standard errors in a private run; None if figures are exact.
        groups: the same column over the rows of each label, if the job has ``by``: levels, other values, missing.
    """

    name: str
    count: int | None
    missing: int | None
    resolution: float | None
    mean: float | None
    variance: float | None
    deviation: float | None
    edges: tuple[float, ...]
    histogram: tuple[int | None, ...]
    quantiles: tuple[Quantile, ...]
    errors: NumericErrors | None = None
    groups: tuple[GroupFindings, ...] = ()

    def group(self, level: str) -> GroupFindings:
        """The figures of the rows of this label.

        Raises:
            FindingsError: if the job did not ask for it.
        """
        for found in self.groups:
            if (found.kind, found.level) == ("level", level):
                return found
        asked = ", ".join(repr(one.level) for one in self.groups if one.kind == "level") or "none"
        raise FindingsError(f"column {self.name!r} has no figures of label {level!r}; the job asked for: {asked}")

    def quantile(self, share: float) -> Quantile:
        """The quantile of this share.

        Raises:
            FindingsError: if the job did not ask for it.
        """
        for found in self.quantiles:
            if found.share == share:
                return found
        asked = ", ".join(f"{one.share:g}" for one in self.quantiles) or "none"
        raise FindingsError(f"column {self.name!r} has no quantile {share}; the job asked for: {asked}")


@dataclass(frozen=True)
class CategoryFindings:
    """A category column over the rows of all participants; suppressed figures are None.

    Attributes:
        name: of the column.
        counts: rows of each level of the job.
        other: rows with another value.
        missing: rows without a value.
        error: standard error of each count in a private run; None if counts are exact.
    """

    name: str
    counts: Mapping[str, int | None]
    other: int | None
    missing: int | None
    error: float | None = None
