"""The standard normal distribution in float64, by SciPy, which is imported when needed: the base client lacks it."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import cast

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


@lru_cache(maxsize=1)
def _special() -> ModuleType:
    import scipy.special  # noqa: PLC0415  # not installed with the base client

    return cast("ModuleType", scipy.special)


def cdf(x: Doubles) -> Doubles:
    """Probability of a value of at most x, with an error of at most (8 + 4 x^2) units in the last place."""
    return np.asarray(_special().ndtr(x), np.float64)


def tail_quantile(chance: float) -> float:
    """The value that is exceeded with this probability."""
    return -float(_special().ndtri(chance))
