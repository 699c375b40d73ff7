"""Parts of columns: participants know different properties of the same rows.

Vertical federated learning (Yang et al. 2019, https://arxiv.org/abs/1902.04885, section 2.3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from atoll.simulation.data.errors import PartitionError
from atoll.simulation.data.partitioners.checks import fitting, generator, whole_sizes
from atoll.simulation.data.partitioners.parts import Indices, Parts, cut_by, even_sizes

ActiveTo: TypeAlias = Literal["first", "last", "all", "new_first", "new_last"] | int
_Key: TypeAlias = Literal["active", "shared", "dropped"]


class Special(TypedDict, total=False):
    """Columns that are not divided.

    Attributes:
        active: columns of the active party, such as the label.
        active_to: who gets the active columns: the first, the last (the default) or every participant, the participant
            with this number, or an additional participant before the first or after the last.
        shared: columns that every participant has, including an additional one.
        dropped: columns that none has.
    """

    active: Sequence[str]
    active_to: ActiveTo
    shared: Sequence[str]
    dropped: Sequence[str]


def vertical_even(
    columns: Sequence[str], *, population: int, seed: int | None = None, **special: Unpack[Special]
) -> Parts:
    """Divide columns into parts whose sizes differ by at most one.

    Args:
        columns: names, each once.
        population: number of participants.
        seed: integer from 0 to deal columns at random; None keeps their order.
        special: columns that are not divided: ``active``, ``active_to``, ``shared``, ``dropped`` (see ``Special``).

    Returns:
        Numbers of columns for each participant: those that were divided, then the active party's, then the shared.

    Raises:
        PartitionError: if a name is unknown or occurs twice, or there are more participants than columns.
    """
    divided = _divided(columns, special, seed)
    sizes = even_sizes(divided.size, fitting(population, divided.size, "columns"))
    return _with_special(cut_by(divided, sizes), columns, special)


def vertical_sizes(
    columns: Sequence[str],
    *,
    sizes: Sequence[int] | Sequence[float],
    seed: int | None = None,
    **special: Unpack[Special],
) -> Parts:
    """Divide columns into parts of these sizes; ``special`` columns come on top.

    Args:
        columns: names, each once.
        sizes: either whole numbers that add up to the columns that are divided, or shares (all float) that add up
            to 1 and are rounded down, the rest for the last.
        seed: integer from 0 to deal columns at random; None keeps their order.
        special: as for ``vertical_even``.

    Raises:
        PartitionError: if a name is unknown or occurs twice, or the sizes do not add up.
    """
    divided = _divided(columns, special, seed)
    if len(sizes) and all(isinstance(size, float) for size in sizes):
        checked = _of_shares(np.asarray(sizes, np.float64), divided.size)
    else:
        checked = whole_sizes(np.asarray(sizes), divided.size, "columns")
        if checked.sum() != divided.size:
            raise PartitionError(f"sizes add up to {checked.sum()} columns of {divided.size}: pass the rest as dropped")
    return _with_special(cut_by(divided, checked), columns, special)


def _divided(columns: Sequence[str], special: Special, seed: int | None) -> Indices:
    """Indices of the divided columns, in the order in which they are dealt."""
    if len(set(columns)) != len(columns):
        twice = next(name for at, name in enumerate(columns) if name in columns[:at])
        raise PartitionError(f"column {twice!r} occurs twice: give each column a different name")
    taken = [at for key in ("active", "shared", "dropped") for at in _numbers(columns, special, key)]
    if len(set(taken)) != len(taken):
        twice = next(columns[at] for at in taken if taken.count(at) > 1)
        raise PartitionError(f"column {twice!r} is named twice in active, shared and dropped: name it once")
    divided = np.setdiff1d(np.arange(len(columns), dtype=np.int64), taken)
    return divided if seed is None else generator(seed).permutation(divided)


def _numbers(columns: Sequence[str], special: Special, key: _Key) -> list[int]:
    """Indices of the columns named by an argument."""
    names = special.get(key, ())
    if isinstance(names, str):
        raise PartitionError(f"{key} is {names!r}: give a sequence of names, [{names!r}]")
    for name in names:
        if name not in columns:
            raise PartitionError(f"{key} names column {name!r}: the columns are {', '.join(columns)}")
    return [columns.index(name) for name in names]


def _of_shares(shares: NDArray[np.float64], columns: int) -> Indices:
    if (shares < 0).any() or not np.isclose(shares.sum(), 1.0, rtol=0, atol=1e-6):
        raise PartitionError(f"sizes are shares that add up to {shares.sum():g}: give shares from 0 that add up to 1")
    sizes = np.floor(shares * columns + 1e-9).astype(np.int64)  # 0.29 * 100 is 28.999999999999996
    sizes[-1] = columns - sizes[:-1].sum()
    return sizes


def _with_special(parts: Parts, columns: Sequence[str], special: Special) -> Parts:
    """Add the active party's columns and the shared ones."""
    active = np.asarray(_numbers(columns, special, "active"), np.int64)
    shared = np.asarray(_numbers(columns, special, "shared"), np.int64)
    return tuple(
        np.concatenate([part, shared]) for part in _with_active(parts, active, special.get("active_to", "last"))
    )


def _with_active(parts: Parts, active: Indices, to: ActiveTo) -> Parts:
    match to:
        case "new_first":
            return (active, *parts)
        case "new_last":
            return (*parts, active)
        case "all":
            holders = set(range(len(parts)))
        case "first":
            holders = {0}
        case "last":
            holders = {len(parts) - 1}
        case int() if 0 <= to < len(parts):
            holders = {to}
        case _:
            raise PartitionError(
                f"active_to is {to!r}: give first, last, all, new_first, new_last or a participant from 0 to "
                f"{len(parts) - 1}"
            )
    return tuple(np.concatenate([part, active]) if at in holders else part for at, part in enumerate(parts))
