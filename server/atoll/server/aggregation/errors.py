"""Errors of aggregation, a branch of ``atoll.server.errors``.

::

    ServerError
    └── AggregationError          the sum cannot be formed or released
        ├── GridError             (InvalidRequestError) settings or weights that leave no usable grid
        ├── RejectedUpdateError   (InvalidRequestError) a value that the grid cannot hold; nothing was added
        ├── DuplicateUpdateError  (ConflictError) an update would count twice; nothing was added
        ├── PartialSumError       (CorruptDataError) a partial sum that is truncated, altered, or of another round
        └── ReleaseError          the next model would not be finite, or the inputs do not fit together
"""

from __future__ import annotations

from typing import ClassVar

from atoll.server.errors import ConflictError, CorruptDataError, InvalidRequestError, ServerError


class AggregationError(ServerError):
    """The sum cannot be formed or released.

    Args:
        message: what does not fit, with the values.
        remedy: what to do next.
    """

    code: ClassVar[str] = "aggregation.sum"

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(self.code, message, remedy)


class GridError(AggregationError, InvalidRequestError):
    """Settings or weights that leave no usable fixed-point grid."""

    code = "aggregation.grid"


class RejectedUpdateError(AggregationError, InvalidRequestError):
    """An update with a value that the grid cannot hold; the sum is unchanged."""

    code = "aggregation.rejected"


class DuplicateUpdateError(AggregationError, ConflictError):
    """An update that is already in the sum, which is unchanged."""

    code = "aggregation.duplicate"


class PartialSumError(AggregationError, CorruptDataError):
    """A partial sum that is truncated, altered, or of another round or model."""

    code = "aggregation.partial"


class ReleaseError(AggregationError):
    """The next model would not be finite, or the inputs of the release do not fit together."""

    code = "aggregation.release"
