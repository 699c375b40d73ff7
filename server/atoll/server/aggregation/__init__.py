"""Aggregation: converts updates to integers, adds them, and updates the model with their mean.

Read ``grid`` first (why nothing overflows), then ``accumulator`` (the sum), ``partial`` (sums of sums), ``optimisers``
(how the mean changes the model) and ``next_model`` (the next model, block by block). ``kernel`` holds the compiled
loops.
"""

from atoll.server.aggregation.accumulator import Accumulator
from atoll.server.aggregation.errors import (
    AggregationError,
    DuplicateUpdateError,
    GridError,
    PartialSumError,
    RejectedUpdateError,
    ReleaseError,
)
from atoll.server.aggregation.grid import DEFAULT_MAX_ABS, Grid, grid_for
from atoll.server.aggregation.kernel import Inspection, combine, inspect, warm, warm_for
from atoll.server.aggregation.next_model import (
    STATE_BYTES,
    IterateMean,
    NewModel,
    OldModel,
    WrittenModel,
    write_next_model,
)
from atoll.server.aggregation.optimisers import OPTIMISER_NAMES, Applied, ServerOptimiser, optimiser_named
from atoll.server.aggregation.partial import MergedSum, PartialSum, mean_block

__all__ = [
    "DEFAULT_MAX_ABS",
    "OPTIMISER_NAMES",
    "STATE_BYTES",
    "Accumulator",
    "AggregationError",
    "Applied",
    "DuplicateUpdateError",
    "Grid",
    "GridError",
    "Inspection",
    "IterateMean",
    "MergedSum",
    "NewModel",
    "OldModel",
    "PartialSum",
    "PartialSumError",
    "RejectedUpdateError",
    "ReleaseError",
    "ServerOptimiser",
    "WrittenModel",
    "combine",
    "grid_for",
    "inspect",
    "mean_block",
    "optimiser_named",
    "warm",
    "warm_for",
    "write_next_model",
]
