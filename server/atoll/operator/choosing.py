"""Choose the metrics to draw from those that were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from atoll.operator.errors import BadInputError

T = TypeVar("T")


def chosen_metrics(measured: Mapping[str, T], names: Sequence[str], whose: str) -> list[T]:
    """The metrics with these names; all of them if no name is given.

    Args:
        measured: the measured metrics, by name.
        names: the requested metrics.
        whose: a plural for errors, such as "the runs".

    Raises:
        BadInputError: if a metric was not measured, or none was.
    """
    missing = [name for name in names if name not in measured]
    if missing or not measured:
        what = f"metric {missing[0]!r}" if missing else "any metric"
        remedy = f"choose of {', '.join(measured)}" if measured else "report metrics from fit, or evaluate the model"
        raise BadInputError(f"{whose} do not have {what}", remedy)
    return [measured[name] for name in names or measured]
