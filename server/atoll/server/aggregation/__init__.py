"""Aggregation: updates become integers, integers are added, the mean moves the model.

Read ``grid`` first (why nothing overflows), then ``accumulator`` (the sum), ``optimisers`` (what the mean does to the
model) and ``release`` (the next model, block by block). ``kernel`` holds the compiled loops: it loads numba and
compiles once per machine, so the pure parts are re-exported here and the rest is imported from its module.
"""

from atoll.server.aggregation.errors import (
    AggregationError,
    DuplicateUpdateError,
    GridError,
    PartialSumError,
    RejectedUpdateError,
    ReleaseError,
)
from atoll.server.aggregation.grid import DEFAULT_MAX_ABS, Grid, grid_for

__all__ = [
    "DEFAULT_MAX_ABS",
    "AggregationError",
    "DuplicateUpdateError",
    "Grid",
    "GridError",
    "PartialSumError",
    "RejectedUpdateError",
    "ReleaseError",
    "grid_for",
]
