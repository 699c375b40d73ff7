"""Measure each collective over a range of sizes, and fit startup time and bandwidth of the links to the cost models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from atoll.datacenter.machine.cost import MODELS, Algorithm, Collective
from atoll.datacenter.machine.rates import Link
from atoll.datacenter.machine.timing import Timing, measure

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_ELEMENT_BYTES = 4
FITTED: tuple[tuple[Collective, Algorithm], ...] = (
    ("all_reduce", "ring"),
    ("all_gather", "ring"),
    ("reduce_scatter", "ring"),
)
"""Collectives that a link is fitted to: those of a training step."""
MOST_BYTES_PER_S = 1e15
"""Upper bound of a fit: measurements beyond it cannot determine the bandwidth."""
_GATHER: Callable[..., object] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_SCATTER: Callable[..., object] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""torch 2.13 deprecates the older name; torch 2.11 has no other."""


@dataclass(frozen=True, slots=True)
class Point:
    """One collective at one size.

    Attributes:
        collective: the collective measured.
        size_bytes: size of the whole buffer; see ``cost``.
        ranks: ranks that took part.
        timing: seconds of one call on the slowest rank.
    """

    collective: Collective
    size_bytes: int
    ranks: int
    timing: Timing

    @property
    def bus_bytes_per_s(self) -> float:
        """Bus bandwidth as in NCCL's tests: what the links carry, independent of the number of ranks."""
        algorithm: Algorithm = "pairwise" if self.collective == "all_to_all" else "ring"
        return MODELS[self.collective, algorithm].volume(self.ranks) * self.size_bytes / self.timing.seconds

    def model_s(self, algorithm: Algorithm, link: Link) -> float:
        """Return the seconds that a cost model predicts with these constants of the link."""
        terms = MODELS[self.collective, algorithm]
        return terms.steps(self.ranks) * link.alpha_s + terms.volume(self.ranks) * self.size_bytes / link.bytes_per_s


def measure_collective(
    collective: Collective, size_bytes: int, device: torch.device, group: ProcessGroup | None = None
) -> Point:
    """Time a collective on the group, its size rounded up to a multiple of the ranks; all ranks must call it."""
    ranks = dist.get_world_size(group)
    elements = max(1, -(-size_bytes // (_ELEMENT_BYTES * ranks))) * ranks
    call = _call(collective, elements, device, group)
    return Point(collective, elements * _ELEMENT_BYTES, ranks, measure(call, device, together=True))


def sizes(largest_bytes: int, smallest_bytes: int = 1024, factor: int = 4) -> Iterator[int]:
    """Yield the sizes to measure, by powers of ``factor`` up to the largest."""
    size = smallest_bytes
    while size <= largest_bytes:
        yield size
        size *= factor


def fit_link(points: Sequence[Point], models: Sequence[tuple[Collective, Algorithm]] = FITTED) -> Link | None:
    """Return the link whose predicted costs are nearest to the points.

    Minimises the squares of ``(steps * alpha + volume * n * beta) / measured - 1``, so that small sizes count as much
    as large ones; alpha and beta are not negative.

    Returns:
        None if no two points differ in these models, which takes at least two ranks.
    """
    by_collective = dict(models)
    rows = []
    for point in points:
        algorithm = by_collective.get(point.collective)
        if algorithm is not None and point.ranks > 1:
            terms = MODELS[point.collective, algorithm]
            volume = terms.volume(point.ranks) * point.size_bytes
            rows.append((terms.steps(point.ranks) / point.timing.seconds, volume / point.timing.seconds))
    if len(set(rows)) < 2:
        return None
    alpha_s, beta = _least_squares(rows)
    return Link(alpha_s=alpha_s, bytes_per_s=1 / max(beta, 1 / MOST_BYTES_PER_S))


def _least_squares(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return ``x, y >= 0`` with the least sum of ``(a x + b y - 1)^2`` over rows ``(a, b)``."""
    aa, ab, bb = (sum(left * right for left, right in pairs) for pairs in _products(rows))
    a, b = (sum(row[axis] for row in rows) for axis in (0, 1))
    determinant = aa * bb - ab * ab
    x = (bb * a - ab * b) / determinant if determinant > 0 else -1.0
    y = (aa * b - ab * a) / determinant if determinant > 0 else -1.0
    if x >= 0 and y >= 0:
        return x, y
    # The minimum is on an edge: take the better of the two.
    edges = ((a / aa if aa else 0.0, 0.0), (0.0, b / bb if bb else 0.0))
    return min(edges, key=lambda edge: sum((left * edge[0] + right * edge[1] - 1) ** 2 for left, right in rows))


def _products(rows: Sequence[tuple[float, float]]) -> Iterator[Iterator[tuple[float, float]]]:
    yield ((row[0], row[0]) for row in rows)
    yield ((row[0], row[1]) for row in rows)
    yield ((row[1], row[1]) for row in rows)


def _call(
    collective: Collective, elements: int, device: torch.device, group: ProcessGroup | None
) -> Callable[[], object]:
    """Return one call of a collective on its own buffers. Values do not matter: zeros stay zeros."""
    ranks = dist.get_world_size(group)
    whole = torch.zeros(elements, dtype=torch.float32, device=device)
    part = torch.zeros(elements // ranks, dtype=torch.float32, device=device)
    root = 0 if group is None else dist.get_global_rank(group, 0)
    match collective:
        case "all_reduce":
            return lambda: dist.all_reduce(whole, group=group)
        case "all_gather":
            return lambda: _GATHER(whole, part, group=group)
        case "reduce_scatter":
            return lambda: _SCATTER(part, whole, group=group)
        case "broadcast":
            return lambda: dist.broadcast(whole, root, group=group)
        case "reduce":
            return lambda: dist.reduce(whole, root, group=group)
        case "all_to_all":
            received = torch.empty_like(whole)
            return lambda: dist.all_to_all_single(received, whole, group=group)
