"""Measured accuracies at several signal-to-noise ratios of DP-SGD, for comparison with a plan.

``python -m benchmarks privacy-samples``: linear classifiers on scikit-learn's data sets, 4 participants, 20 rounds of
one epoch, batch 32, delta 1e-4, means over three seeds (docs/privacy/accuracy.md). A test compares this table with the
results.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """One measured case.

    Attributes:
        data: name of the data set.
        rows: number of rows of each participant.
        elements: number of elements of the model.
        epsilon: epsilon per row.
        of_run: best-case signal-to-noise ratio of the run.
        accuracy: accuracy on held-out data.
        without: accuracy of the same training without noise and clipping.
        largest_class: accuracy of always answering the most frequent class.
    """

    data: str
    rows: int
    elements: int
    epsilon: float
    of_run: float
    accuracy: float
    without: float
    largest_class: float

    @property
    def sentence(self) -> str:
        """A sentence that says what the ratio meant in this case."""
        return (
            f"{self.of_run:.3g} on {self.data} (4 participants of {self.rows} rows, {self.elements} elements, epsilon "
            f"{self.epsilon:g}): accuracy {self.accuracy:.3f}; {self.without:.3f} without noise, "
            f"{self.largest_class:.3f} by always answering the most frequent class"
        )


_ROWS = (
    ("breast cancer", 106, 62, 0.3, 2.71, 0.894, 0.977, 0.624),
    ("breast cancer", 106, 62, 1.0, 7.9, 0.932, 0.977, 0.624),
    ("breast cancer", 106, 62, 3.0, 20.16, 0.967, 0.977, 0.624),
    ("breast cancer", 106, 62, 8.0, 42.61, 0.969, 0.977, 0.624),
    ("wine", 33, 42, 0.3, 1.03, 0.5, 0.97, 0.402),
    ("wine", 33, 42, 1.0, 3.03, 0.917, 0.97, 0.402),
    ("wine", 33, 42, 3.0, 7.97, 0.962, 0.97, 0.402),
    ("wine", 33, 42, 8.0, 18.11, 0.962, 0.97, 0.402),
    ("digits", 337, 650, 0.3, 2.65, 0.559, 0.962, 0.122),
    ("digits", 337, 650, 1.0, 7.65, 0.822, 0.962, 0.122),
    ("digits", 337, 650, 3.0, 18.61, 0.929, 0.962, 0.122),
    ("digits", 337, 650, 8.0, 34.96, 0.94, 0.962, 0.122),
)
CASES = tuple(sorted((MeasuredCase(*row) for row in _ROWS), key=lambda case: case.of_run))
"""The cases by ascending ratio."""


def beside(of_run: float) -> tuple[MeasuredCase, ...]:
    """The two cases whose ratios are next below and above a plan's, and one more on either side."""
    place = bisect([case.of_run for case in CASES], of_run)
    return CASES[max(0, place - 2) : place + 2]
