"""Parts by an id in the rows: users, speakers, hospitals.

The natural partition of LEAF's data sets (Caldas et al. 2018, https://arxiv.org/abs/1812.01097).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from atoll.simulation.data.errors import PartitionError
from atoll.simulation.data.partitioners.checks import Classes, classes_of, whole
from atoll.simulation.data.partitioners.parts import Indices, Parts, cut_by, even_sizes

Remainder: TypeAlias = Literal["smaller", "bigger", "drop", "error"]


def natural_ids(ids: ArrayLike) -> Parts:
    """One participant for each id: participant ``i`` has the rows of ``np.unique(ids)[i]``, in their order.

    Args:
        ids: integers or texts [rows].

    Raises:
        PartitionError: if ``ids`` is empty or holds something else.
    """
    found = classes_of(ids, "ids")
    return cut_by(np.argsort(found.codes, kind="stable").astype(np.int64), found.counts)


def grouped_ids(
    ids: ArrayLike, *, group_size: int, remainder: Remainder = "smaller", by_appearance: bool = False
) -> Parts:
    """One participant for each group of ids, such as an organisation with several users.

    Args:
        ids: integers or texts [rows].
        group_size: ids of a group, from 1.
        remainder: what happens to ids that do not fill a group: ``smaller`` gives them a smaller group at the end,
            ``bigger`` spreads them over the first groups, ``drop`` leaves their rows out, ``error`` refuses.
        by_appearance: group ids in the order in which they first occur, not sorted.

    Raises:
        PartitionError: if ids are left over with ``error``, or fewer than ``group_size`` with ``bigger`` or ``drop``.
    """
    found = classes_of(ids, "ids")
    sizes = _group_sizes(len(found), whole(group_size, "group_size"), remainder)
    group_of = np.repeat(np.arange(sizes.size), sizes)
    order = _by_appearance(found) if by_appearance else np.arange(len(found))
    place = np.empty(len(found), np.int64)
    place[order] = np.arange(len(found))
    rows = np.argsort(place[found.codes], kind="stable").astype(np.int64)
    return cut_by(rows, np.bincount(group_of, weights=found.counts[order[: group_of.size]]).astype(np.int64))


def _group_sizes(ids: int, group_size: int, remainder: Remainder) -> Indices:
    """Ids of each group, int64 [groups]."""
    groups, over = divmod(ids, group_size)
    full = np.full(groups, group_size, np.int64)
    if not over or (groups and remainder == "drop"):
        return full
    if remainder == "smaller":
        return np.append(full, over)
    if remainder == "bigger" and groups:
        return even_sizes(ids, groups)
    if remainder not in {"bigger", "drop", "error"}:
        raise PartitionError(f"remainder is {remainder!r}: give smaller, bigger, drop or error")
    raise PartitionError(
        f"group_size is {group_size}: {ids} ids leave {over} over; give a divisor of {ids}, or remainder='smaller'"
    )


def _by_appearance(found: Classes) -> Indices:
    """Numbers of the ids in the order of their first rows."""
    _, first = np.unique(found.codes, return_index=True)
    return np.argsort(first).astype(np.int64)
