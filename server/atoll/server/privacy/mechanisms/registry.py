"""Mechanisms by name."""

from __future__ import annotations

from collections.abc import Callable

from atoll.server.privacy.mechanisms.banded import Banded
from atoll.server.privacy.mechanisms.gaussian import Gaussian
from atoll.server.privacy.mechanisms.tree import Tree
from atoll.server.privacy.mechanisms.values import Mechanism

MECHANISMS: dict[str, Callable[[int], Mechanism]] = {
    "gaussian": lambda _: Gaussian(),
    "tree": lambda _: Tree(),
    "banded": Banded,
}


def mechanism_named(name: str, bands: int = 1) -> Mechanism:
    """The mechanism of that name, as in a job file; ``bands`` mean something to "banded" only.

    Raises:
        ValueError: there is none; the error lists those that there are.
    """
    try:
        return MECHANISMS[name](bands)
    except KeyError:
        raise ValueError(f"mechanism = {name!r}: must be one of {', '.join(MECHANISMS)}") from None
