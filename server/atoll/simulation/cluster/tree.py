"""The tree in which workers add each other's partial sums: first within each machine, then between machines."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

ARITY = 4
"""Maximum number of sums that a worker adds to its own, from its machine and again from others; each has model size."""

T = TypeVar("T", bound=Hashable)


def children(of: Sequence[T], node_of: Callable[[T], str], first: str) -> tuple[T, Mapping[T, Sequence[T]]]:
    """The worker that gets the whole sum, and for each worker the workers whose sums it adds.

    Args:
        of: the workers, at least one.
        node_of: the machine of a worker.
        first: the machine that needs the sum; the root is on it if it has a worker.
    """
    groups: dict[str, list[T]] = {}
    for one in sorted(of, key=lambda one: node_of(one) != first):
        groups.setdefault(node_of(one), []).append(one)
    below: dict[T, list[T]] = {one: [] for one in of}
    leaders = [group[0] for group in groups.values()]
    for level in (*groups.values(), leaders):
        for place, one in enumerate(level[1:]):
            below[level[place // ARITY]].append(one)
    return leaders[0], below
