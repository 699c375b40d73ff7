"""Frozen tensors: sent with the model, and changed by no round.

A round updates one range of the model's elements. So in the layout of a run trained tensors are first and frozen ones
last, each kind in the order of the file.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from atoll.server.errors import InvalidRequestError
from atoll.wire.layout import Layout

if TYPE_CHECKING:
    from atoll.server.jobs.spec import JobSpec

_NAMED = 20
"""Maximum number of tensors that a refusal names."""


def frozen_tensors(spec: JobSpec, layout: Layout) -> frozenset[str]:
    """The names of the tensors that ``aggregation.frozen`` matches."""
    patterns = spec.aggregation.frozen
    names = (tensor.name for tensor in layout.tensors) if patterns else ()
    return frozenset(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


def trained_layout(spec: JobSpec, layout: Layout) -> Layout:
    """The trained tensors, in order; a job that freezes all tensors has been refused (``check_frozen``)."""
    frozen = frozen_tensors(spec, layout)
    return Layout(tuple(tensor for tensor in layout.tensors if tensor.name not in frozen)) if frozen else layout


def trained_first(spec: JobSpec, layout: Layout) -> Layout:
    """The layout of the run: the same tensors, with the trained ones before the frozen ones."""
    frozen = frozen_tensors(spec, layout)
    return Layout(tuple(sorted(layout.tensors, key=lambda tensor: tensor.name in frozen))) if frozen else layout


def check_frozen(spec: JobSpec, layout: Layout) -> None:
    """Refuse a pattern that matches no tensor, and patterns that leave no tensor to train.

    Raises:
        InvalidRequestError: shows the pattern and the model's tensors.
    """
    names = [tensor.name for tensor in layout.tensors]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    listed = f"{', '.join(names[:_NAMED])}{more}"
    for pattern in spec.aggregation.frozen:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InvalidRequestError(
                "job.frozen",
                f"aggregation.frozen has {pattern!r}, which matches no tensor of the model",
                f"correct it or leave it out; the model has {listed}",
            )
    if len(frozen_tensors(spec, layout)) == len(names):
        raise InvalidRequestError(
            "job.frozen",
            f"aggregation.frozen matches every tensor of the model ({listed}): nothing would be trained",
            "freeze fewer tensors",
        )
