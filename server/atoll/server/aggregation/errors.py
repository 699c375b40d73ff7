"""Errors of aggregation.

::

    AggregationError          the sum cannot be formed or released
    ├── GridError             the operator's settings or the cohort's weights leave no usable grid
    ├── RejectedUpdateError   the participant's fault: a value that the grid cannot hold; nothing was added
    ├── DuplicateUpdateError  the server's fault: an update would be counted twice; nothing was added
    ├── PartialSumError       a partial sum that is truncated, altered, or of another grid or model
    └── ReleaseError          the next model would not be finite, or the inputs do not fit together
"""


class AggregationError(ValueError):
    """The sum cannot be formed or released; the message names the value and the remedy."""


class GridError(AggregationError):
    """Settings or weights that leave no usable fixed-point grid."""


class RejectedUpdateError(AggregationError):
    """An update with a value that the grid cannot hold; the sum is as it was before."""


class DuplicateUpdateError(AggregationError):
    """An update that is in the sum already; the sum is as it was before."""


class PartialSumError(AggregationError):
    """A partial sum that is truncated, altered, or of another grid or model."""


class ReleaseError(AggregationError):
    """The next model would not be finite, or the inputs of the release do not fit together."""
