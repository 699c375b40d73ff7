"""The result of every partitioner, and how it is made from an assignment of rows to participants."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Indices: TypeAlias = NDArray[np.int64]
"""Indices of rows or columns, int64 [k], each at most once."""
Parts: TypeAlias = tuple[Indices, ...]
"""One index set for each participant, in the order of participants."""

UNASSIGNED = -1


def parts_of(owners: Indices, population: int, rng: np.random.Generator) -> Parts:
    """The rows of each participant in random order, so that a slice of a part is a random sample of it.

    Args:
        owners: int64 [rows], the participant of each row, or ``UNASSIGNED``.
        population: number of participants.
        rng: decides the order of rows.
    """
    order = rng.permutation(owners.size).astype(np.int64)
    return cut(order[np.argsort(owners[order], kind="stable")], _starts(owners, population))


def cut(rows: Indices, starts: Indices) -> Parts:
    """Consecutive pieces of ``rows``: piece ``i`` goes from ``starts[i]`` to ``starts[i + 1]``."""
    return tuple(rows[start:end] for start, end in pairwise(starts.tolist()))


def cut_by(rows: Indices, sizes: Indices) -> Parts:
    """Consecutive pieces of ``rows`` with these sizes; leftover rows belong to no part."""
    return cut(rows, np.concatenate([[0], np.cumsum(sizes)]))


def even_sizes(rows: int, parts: int) -> Indices:
    """Sizes that differ by at most one; the first parts get the leftover rows."""
    share, over = divmod(rows, parts)
    return np.full(parts, share, np.int64) + (np.arange(parts) < over)


def _starts(owners: Indices, population: int) -> Indices:
    counts = np.bincount(owners + 1, minlength=population + 1)
    return np.cumsum(counts)
