"""scikit-learn's bundled data sets (https://scikit-learn.org/stable/datasets/toy_dataset.html)."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from atoll.simulation.data.errors import DataError, MissingLibraryError
from atoll.simulation.data.loaders.examples import Examples, read_only

Name: TypeAlias = Literal["breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine"]


def load_sklearn(name: Name) -> Examples:
    """Load one of scikit-learn's bundled data sets.

    ================= ====== ======= ==========================
    name              rows   columns labels
    ================= ====== ======= ==========================
    ``breast_cancer``    569      30 2 classes
    ``diabetes``         442      10 a real number
    ``digits``         1,797      64 10 classes; inputs 0 to 16
    ``iris``             150       4 3 classes
    ``linnerud``          20       3 3 real numbers
    ``wine``             178      13 3 classes
    ================= ====== ======= ==========================

    Returns:
        Inputs float32 [rows, columns]; labels int64 [rows], or float64 for real numbers.

    Raises:
        MissingLibraryError: if scikit-learn is not installed.
        DataError: for another name.
    """
    if name not in get_args(Name):
        raise DataError(f"{name!r} is not bundled with scikit-learn: give one of {', '.join(get_args(Name))}")
    try:
        from sklearn import datasets  # noqa: PLC0415  # optional, slow to import
    except ImportError as error:
        raise MissingLibraryError("scikit-learn", "demo") from error
    found: Any = getattr(datasets, f"load_{name}")()
    real = name in {"diabetes", "linnerud"}
    examples = Examples(
        np.asarray(found.data, np.float32),
        np.asarray(found.target, np.float64 if real else np.int64),
        columns=tuple(map(str, found.feature_names)),
        classes=() if real else tuple(map(str, found.target_names)),
    )
    return read_only(examples)
