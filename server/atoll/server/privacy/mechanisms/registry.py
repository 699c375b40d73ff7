"""Mechanisms by name."""

from __future__ import annotations

from atoll.server.privacy.mechanisms.banded import Banded
from atoll.server.privacy.mechanisms.blt import Blt
from atoll.server.privacy.mechanisms.gaussian import Gaussian
from atoll.server.privacy.mechanisms.interface import Mechanism
from atoll.server.privacy.mechanisms.strategy import Strategy
from atoll.server.privacy.mechanisms.tree import Tree

MECHANISMS = ("gaussian", "blt", "banded", "tree")


def mechanism_named(name: str, bands: int = 1, strategy: Strategy | None = None, rounds: int = 1) -> Mechanism:
    """The mechanism of that name in a job file.

    Args:
        name: one of ``MECHANISMS``.
        bands: of "banded"; others ignore it.
        strategy: of "blt"; others ignore it.
        rounds: the run's train rounds; used only by "blt".

    Raises:
        ValueError: for an unknown name, or "blt" without a strategy.
    """
    match name:
        case "gaussian":
            return Gaussian()
        case "tree":
            return Tree()
        case "banded":
            return Banded(bands)
        case "blt":
            if strategy is None:
                raise ValueError('mechanism = "blt": it has no strategy')
            return Blt(strategy, rounds)
        case _:
            raise ValueError(f"mechanism = {name!r}: must be one of {', '.join(MECHANISMS)}")
