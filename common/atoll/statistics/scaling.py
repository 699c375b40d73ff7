"""Standardise features with the mean and deviation of all participants' rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Scaling:
    """Mean and standard deviation of columns.

    Attributes:
        columns: names, in the order of the features.
        means: of each column.
        deviations: of each column; a deviation of 0 divides by 1.
    """

    columns: tuple[str, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]

    def standardise(self, features: Any) -> npt.NDArray[np.float64]:
        """(features - mean) / deviation.

        Args:
            features: an array of shape ``(rows, columns)`` in the order of ``columns``, or a table that returns each
                column by its name (a mapping, a pandas or polars DataFrame, a pyarrow Table).

        Returns:
            float64, shape ``(rows, columns)``.

        Raises:
            ValueError: if an array has another number of columns.
            KeyError: if a table lacks a column.
        """
        if not isinstance(features, np.ndarray):
            features = np.stack([np.asarray(features[name], np.float64) for name in self.columns], axis=1)
        if features.ndim != 2 or features.shape[1] != len(self.columns):
            raise ValueError(f"features have shape {features.shape}; (rows, {len(self.columns)}) is needed")
        deviations = np.array(self.deviations)
        divisors = np.where(deviations > 0, deviations, 1.0)
        standardised: npt.NDArray[np.float64] = (features.astype(np.float64) - np.array(self.means)) / divisors
        return standardised

    def to_text(self) -> str:
        """One line of JSON, short enough for a setting of a job: ``[training] scaling = '...'``."""
        return json.dumps([self.columns, self.means, self.deviations], ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Read ``to_text``'s output, for example ``Scaling.of_text(task.settings.text("scaling"))``.

        Raises:
            ValueError: if the text is something else.
        """
        try:
            columns, means, deviations = json.loads(text)
            return cls(tuple(columns), tuple(map(float, means)), tuple(map(float, deviations)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"no scaling: {text[:60]!r}") from error
