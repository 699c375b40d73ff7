"""Fragments: parts of the model of which each train round updates one, in turn.

This is streaming DiLoCo (Douillard et al. 2025, arXiv:2501.18512, section 2.2) with its sequential pattern: neighbours
in the layout, which mostly are neighbours in the network, share a fragment. A round's fragment follows from the job,
the layout and the number of train rounds released before it, so it is not stored.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from atoll.server.errors import InvalidRequestError
from atoll.server.jobs.frozen import trained_layout
from atoll.wire.chunks import ElementRange

if TYPE_CHECKING:
    from atoll.server.jobs.spec import JobSpec
    from atoll.wire.layout import Layout


@dataclass(frozen=True, slots=True)
class Fragments:
    """Consecutive ranges of elements, cut at tensor borders, that cover the N trained elements [0, N)."""

    parts: tuple[ElementRange, ...]

    def __len__(self) -> int:
        return len(self.parts)

    def of_round(self, version: int) -> ElementRange:
        """The fragment of the train round after ``version`` released ones; retries have the same."""
        return self.parts[version % len(self.parts)]

    @property
    def largest(self) -> int:
        """Number of elements of the largest fragment."""
        return max(part.size for part in self.parts)


def fragments_of(spec: JobSpec, layout: Layout) -> Fragments:
    """The fragments of the tensors that a job trains, which are first in ``layout``. Raises what ``deal`` raises."""
    return deal(trained_layout(spec, layout), spec.aggregation.fragments)


def deal(layout: Layout, count: int) -> Fragments:
    """Cut a layout into ``count`` fragments of whole tensors, each at least one, of nearly equal numbers of elements.

    Cut k is at the tensor border nearest to k/count of the elements, so no fragment has more than N/count elements plus
    those of the largest tensor.

    Raises:
        InvalidRequestError: if there are fewer than ``count`` tensors.
    """
    tensors = len(layout.tensors)
    if not 1 <= count <= tensors:
        raise InvalidRequestError(
            "job.fragments",
            f"aggregation.fragments = {count}: the model has {tensors} tensors, and a fragment has at least one",
            f"allowed are 1 to {tensors} for this model",
        )
    borders = [0, *(span.stop for span in layout.spans)]
    cuts = [0]
    for k in range(1, count):
        nearest = _nearest(borders, layout.size * k, count)
        cuts.append(min(max(nearest, cuts[-1] + 1), tensors - (count - k)))
    ends = [borders[cut] for cut in (*cuts, tensors)]
    return Fragments(tuple(ElementRange.run(start, stop - start) for start, stop in pairwise(ends)))


def _nearest(borders: list[int], numerator: int, denominator: int) -> int:
    """Index of the border nearest to numerator/denominator, the lower one of two."""
    above = bisect_left(borders, -(-numerator // denominator))
    below = max(0, above - 1)
    return below if numerator - borders[below] * denominator <= borders[above] * denominator - numerator else above
