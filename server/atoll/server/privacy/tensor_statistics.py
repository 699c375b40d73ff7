"""Refuses private jobs on models whose tensors include statistics, which noise would ruin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.server.errors import InvalidRequestError
from atoll.server.jobs.convert import averaged_tensors
from atoll.server.jobs.frozen import frozen_tensors

if TYPE_CHECKING:
    from atoll.server.jobs.spec import JobSpec
    from atoll.wire.layout import Layout

_NAMED = 5


def check_no_statistics(spec: JobSpec, layout: Layout) -> None:
    """Refuse a private job whose model has tensors that are averaged as statistics rather than trained as weights.

    The noise on a running variance is as large as the noise on a weight, and makes the variance negative. Changes of
    statistics also use up part of the clip norm, at the expense of the weights.

    Raises:
        InvalidRequestError: names the tensors and the remedy.
    """
    noised = averaged_tensors(spec, layout) - frozen_tensors(spec, layout)
    found = [tensor.name for tensor in layout.tensors if tensor.name in noised]
    if spec.privacy is None or not found:
        return
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    raise InvalidRequestError(
        "job.statistics",
        f"tensors {', '.join(found[:_NAMED])}{more} are statistics (aggregation.averaged), which a private job's noise "
        "would ruin: a variance becomes negative",
        "replace batch norm by group or layer norm, freeze these tensors (aggregation.frozen), or leave these tensors "
        "out of the initial model, so that each participant keeps its own; a weight that only has such a name is taken "
        "out of aggregation.averaged",
    )
