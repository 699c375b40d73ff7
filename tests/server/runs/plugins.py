"""Evaluators for the tests."""

import threading
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tests.patience import WAIT_S

Model = Mapping[str, npt.NDArray[np.generic]]
release = threading.Event()
hangs = threading.Event()
seen: list[dict[str, npt.NDArray[np.generic]]] = []
not_callable = 7


def norm(model: Model) -> dict[str, float]:
    seen.append(dict(model))
    return {"norm": float(sum(np.abs(array.astype(float)).sum() for array in model.values()))}


def failing(model: Model) -> dict[str, float]:
    raise ZeroDivisionError(f"no data for {len(model)} tensors")


def not_finite(model: Model) -> dict[str, float]:
    return {"loss": float("nan"), "tensors": float(len(model))}


def too_many(model: Model) -> dict[str, float]:
    return {f"m{number}": 1.0 for number in range(1000 + len(model))}


def no_mapping(_: Model) -> int:
    return 3


def exiting(_: Model) -> dict[str, float]:
    raise SystemExit(3)


def interrupted(_: Model) -> dict[str, float]:
    raise KeyboardInterrupt


def stopping(_: Model) -> dict[str, float]:
    raise StopIteration


def hanging(_: Model) -> dict[str, float]:
    hangs.set()
    release.wait(WAIT_S)
    return {}
