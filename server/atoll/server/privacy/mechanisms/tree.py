"""Tree aggregation, the noise of DP-FTRL (Kairouz et al. 2021, Section 3 and Algorithm 1; Dwork et al. 2010).

Releases are numbered from 1. Release t completes node t of a binary tree over the releases: the sum of the last
``t & -t`` rounds. The sum of rounds 1 to t consists of one node for each one bit of t. So it has the noise of few
nodes, and one participation changes at most one node of each size.

A round's sum gets the noise of the new node minus the noise of the nodes that it replaces. This is the difference
between the noises of two neighbouring prefix sums. The keys of the current prefix sum's nodes are kept, at most one of
each size; the others are deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from atoll.server.privacy.mechanisms.interface import (
    Integers,
    KeptKey,
    Mechanism,
    NoiseState,
    NoiseStateError,
    RoundNoise,
    check_kept,
)
from atoll.server.privacy.mechanisms.keys import derived
from atoll.server.privacy.noise import DiscreteGaussian

if TYPE_CHECKING:
    from atoll.server.aggregation.next_model import Readable


@dataclass(frozen=True, slots=True)
class Tree(Mechanism):
    """``sigma`` is the standard deviation of each node's noise."""

    @property
    def name(self) -> str:
        """See ``Mechanism``."""
        return "tree"

    def round(
        self,
        state: NoiseState,
        version: int,
        binding: bytes,
        sigma: float,
        history: Mapping[str, Readable],  # noqa: ARG002 - the protocol's
    ) -> Nodes:
        """See ``Mechanism``."""
        _check(state, version, sigma)
        gone = tuple(state.kept[_name(end)].key for end in _gone(version))
        return Nodes(DiscreteGaussian(sigma), derived(state.secret, "round", version, binding), gone)

    def advance(self, state: NoiseState, version: int, binding: bytes, sigma: float, fresh: bytes) -> NoiseState:
        """See ``Mechanism``."""
        _check(state, version, sigma)
        gone = {_name(end) for end in _gone(version)}
        kept = {name: one for name, one in state.kept.items() if name not in gone}
        kept[_name(version + 1)] = KeptKey(derived(state.secret, "round", version, binding), sigma)
        return state.advanced(fresh, kept)


@dataclass(frozen=True, slots=True)
class Nodes(RoundNoise):
    """The noise of one release: that of a new node minus that of the nodes it replaces, drawn from their keys."""

    noise: DiscreteGaussian
    new: bytes = field(repr=False)
    gone: tuple[bytes, ...] = field(repr=False)

    def block(self, start: int, stop: int) -> Integers:
        """See ``RoundNoise``."""
        out = np.empty(stop - start, np.int64)
        self.noise.draw(out, self.new, start)
        other = np.empty_like(out) if self.gone else out
        for key in self.gone:
            self.noise.draw(other, key, start)
            np.subtract(out, other, out=out)
        return out


def nodes_of(last: int) -> list[int]:
    """The nodes of the prefix of releases 1 to ``last``, by their last release."""
    ends = []
    while last:
        ends.append(last)
        last &= last - 1
    return ends


def _gone(version: int) -> list[int]:
    """The nodes of the prefix of ``version`` releases that the next release's node replaces."""
    return [end for end in nodes_of(version) if end > version & (version + 1)]


def _name(end: int) -> str:
    return f"node-{end}"


def _check(state: NoiseState, version: int, sigma: float) -> None:
    state.check("tree", version)
    expected = {_name(end) for end in nodes_of(version)}
    if set(state.kept) != expected:
        raise NoiseStateError(
            f"the tree after {version} releases is {sorted(expected)}, stored is {sorted(state.kept)}"
        )
    check_kept(state, sigma)
