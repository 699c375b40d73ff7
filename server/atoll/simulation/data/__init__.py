"""Data for simulations: partitioners, data sets that need no download, and pictures of how rows are distributed.

::

    from atoll.simulation import data

    digits = data.load_sklearn("digits")
    parts = data.dirichlet(digits.labels, population=20, alpha=0.3, seed=1)
    mine = digits.at(parts[3])                     # what participant 3 holds
    print(data.holdings(parts, digits.labels))     # rows of each class for each participant

The functions that divide rows or columns are pure and return ``Parts``: one array of row (or column) indices for each
participant. See ``partitioners`` for their common arguments, and docs/simulation/data.md.
"""

from atoll.simulation.data.errors import DataError, DataWarning, FormatError, MissingLibraryError, PartitionError
from atoll.simulation.data.loaders.examples import Examples
from atoll.simulation.data.loaders.idx import load_idx, read_idx
from atoll.simulation.data.loaders.leaf import load_leaf
from atoll.simulation.data.loaders.scikit_learn import load_sklearn
from atoll.simulation.data.partitioners.continuous import continuous
from atoll.simulation.data.partitioners.dirichlet import dirichlet
from atoll.simulation.data.partitioners.distribution import distribution, power_law_weights
from atoll.simulation.data.partitioners.drift import (
    Drift,
    dirichlet_shares,
    drift,
    incremental,
    recurring,
    sudden,
)
from atoll.simulation.data.partitioners.inner_dirichlet import inner_dirichlet
from atoll.simulation.data.partitioners.natural import grouped_ids, natural_ids
from atoll.simulation.data.partitioners.parts import Indices, Parts
from atoll.simulation.data.partitioners.pathological import pathological
from atoll.simulation.data.partitioners.shards import shards
from atoll.simulation.data.partitioners.sizes import by_sizes, exponential_sizes, iid, linear_sizes, square_sizes
from atoll.simulation.data.partitioners.vertical import vertical_even, vertical_sizes
from atoll.simulation.data.table import Holdings, holdings

__all__ = [
    "DataError",
    "DataWarning",
    "Drift",
    "Examples",
    "FormatError",
    "Holdings",
    "Indices",
    "MissingLibraryError",
    "PartitionError",
    "Parts",
    "by_sizes",
    "continuous",
    "dirichlet",
    "dirichlet_shares",
    "distribution",
    "drift",
    "exponential_sizes",
    "grouped_ids",
    "holdings",
    "iid",
    "incremental",
    "inner_dirichlet",
    "linear_sizes",
    "load_idx",
    "load_leaf",
    "load_sklearn",
    "natural_ids",
    "pathological",
    "power_law_weights",
    "read_idx",
    "recurring",
    "shards",
    "square_sizes",
    "sudden",
    "vertical_even",
    "vertical_sizes",
]
