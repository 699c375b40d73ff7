"""Cost of a collective: seconds = steps * alpha + volume * n * beta, by algorithm.

``p`` is the number of ranks, ``alpha`` a link's startup time, ``beta`` = 1 / its bytes per second in one direction, and
``n`` the bytes of the whole buffer as NCCL's tests count them: what each rank holds of an all-reduce, broadcast, reduce
or all-to-all; what each rank ends with of an all-gather; what each rank starts with of a reduce-scatter. The arithmetic
of reductions (gamma) is left out, since a device adds faster than a link delivers.

Sources: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in MPICH"; Sanders,
Speck and Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (NCCL's trees); Bruck et
al. 1997, "Efficient algorithms for all-to-all communications"; the volumes of ring and pairwise are the factors of the
bus bandwidth in NCCL's tests (doc/PERFORMANCE.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from atoll.datacenter.errors import DatacenterError
from atoll.datacenter.machine.rates import Link, MachineRates

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"]
Algorithm = Literal["ring", "tree", "double_tree", "pairwise"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)


class CostError(DatacenterError):
    """There is no cost model for this case."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that communicate with each other.

    Attributes:
        ranks: number of ranks.
        nodes: number of nodes; each has the same number of ranks.

    Raises:
        CostError: unless ``nodes`` divides ``ranks`` and both are at least 1.
    """

    ranks: int
    nodes: int = 1

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.nodes < 1 or self.ranks % self.nodes:
            raise CostError(f"{self.ranks} ranks cannot be divided evenly among {self.nodes} nodes")

    @property
    def ranks_per_node(self) -> int:
        """Ranks of the group on each node."""
        return self.ranks // self.nodes


@dataclass(frozen=True, slots=True)
class Terms:
    """A cost that is linear in alpha and n * beta.

    Attributes:
        steps: startup times, as a function of the number of ranks.
        volume: times that the buffer passes the busiest link in one direction, as a function of the number of ranks.
        formula: both, as text.
        source: publication of the formula.
    """

    steps: Callable[[int], float]
    volume: Callable[[int], float]
    formula: str
    source: str


@dataclass(frozen=True, slots=True)
class Cost:
    """Predicted cost of one call.

    Attributes:
        algorithm: algorithm of the call.
        seconds: predicted duration; 0 on one rank.
        sent_bytes: bytes that the busiest rank sends.
        inter_bytes: bytes that leave its node (for a ring: its share of the node's network traffic).
        formula: formula of the seconds.
    """

    algorithm: Algorithm
    seconds: float
    sent_bytes: float
    inter_bytes: float
    formula: str


def levels(ranks: int) -> int:
    """Return ``ceil(log2 p)``, the depth of a binomial tree."""
    return (ranks - 1).bit_length()


def _all_but_one(ranks: int) -> float:
    return ranks - 1


def _others_share(ranks: int) -> float:
    return (ranks - 1) / ranks


def _once(_ranks: int) -> float:
    return 1.0


_THAKUR, _SANDERS = "Thakur et al. 2005", "Sanders et al. 2009, many segments"
_LEVELS = "ceil(log2 p)"
_PART = "(p - 1)/p * n * beta"
_DOUBLING = Terms(levels, _others_share, f"{_LEVELS} * alpha + {_PART}", f"{_THAKUR}: recursive doubling or halving")
_RING = Terms(_all_but_one, _others_share, f"(p - 1) * alpha + {_PART}", f"{_THAKUR}: ring")
_CHAIN = Terms(_all_but_one, _once, "(p - 1) * alpha + n * beta", "a chain with many segments, as in NCCL's ring")
_BINOMIAL = Terms(levels, levels, f"{_LEVELS} * (alpha + n * beta)", f"{_THAKUR}: binomial tree")
_TWO_TREES = Terms(levels, _once, f"{_LEVELS} * alpha + n * beta", _SANDERS)

MODELS: Mapping[tuple[Collective, Algorithm], Terms] = MappingProxyType(
    {
        ("all_reduce", "ring"): Terms(
            lambda p: 2 * (p - 1),
            lambda p: 2 * _others_share(p),
            f"2 * (p - 1) * alpha + 2 * {_PART}",
            f"{_THAKUR}: reduce-scatter and all-gather, by rings",
        ),
        ("all_reduce", "tree"): Terms(
            levels, levels, f"{_LEVELS} * (alpha + n * beta)", f"{_THAKUR}: recursive doubling"
        ),
        ("all_reduce", "double_tree"): Terms(
            lambda p: 2 * levels(p), lambda p: 2 * _once(p), f"2 * {_LEVELS} * alpha + 2 * n * beta", _SANDERS
        ),
        ("all_gather", "ring"): _RING,
        ("all_gather", "tree"): _DOUBLING,
        ("reduce_scatter", "ring"): _RING,
        ("reduce_scatter", "tree"): _DOUBLING,
        ("broadcast", "ring"): _CHAIN,
        ("broadcast", "tree"): _BINOMIAL,
        ("broadcast", "double_tree"): _TWO_TREES,
        ("reduce", "ring"): _CHAIN,
        ("reduce", "tree"): _BINOMIAL,
        ("reduce", "double_tree"): _TWO_TREES,
        ("all_to_all", "pairwise"): Terms(
            _all_but_one, _others_share, f"(p - 1) * alpha + {_PART}", f"{_THAKUR}: pairwise exchange"
        ),
        ("all_to_all", "tree"): Terms(
            levels, lambda p: levels(p) / 2, f"{_LEVELS} * (alpha + n/2 * beta)", "Bruck et al. 1997"
        ),
    }
)
"""All models. Where ``p`` is not a power of two, the levels of a tree are rounded up and its extra step is left out."""

LIBRARY: Mapping[Collective, tuple[Algorithm, ...]] = MappingProxyType(
    {
        "all_reduce": ("ring", "double_tree"),
        "all_gather": ("ring",),
        "reduce_scatter": ("ring",),
        "broadcast": ("ring",),
        "reduce": ("ring",),
        "all_to_all": ("pairwise",),
    }
)
"""NCCL's choices without switches that compute (src/graph/tuning.cc)."""


def cost(collective: Collective, algorithm: Algorithm, size_bytes: float, group: Group, rates: MachineRates) -> Cost:
    """Return the cost of one call by this algorithm.

    Raises:
        CostError: if the algorithm does not exist for this collective.
    """
    terms = _terms(collective, algorithm)
    if group.ranks == 1:
        return Cost(algorithm, 0.0, 0.0, 0.0, terms.formula)
    sent = terms.volume(group.ranks) * size_bytes
    if algorithm == "pairwise":
        return _pairwise(size_bytes, group, rates)
    link = link_of(algorithm, group, rates)
    seconds = terms.steps(group.ranks) * link.alpha_s + sent / link.bytes_per_s
    crossing = sent / group.ranks_per_node if group.nodes > 1 else 0.0
    return Cost(algorithm, seconds, sent, crossing, terms.formula)


def predict(collective: Collective, size_bytes: float, group: Group, rates: MachineRates) -> Cost:
    """Return the cost of one call by the fastest algorithm that the library has for it."""
    return min(
        (cost(collective, algorithm, size_bytes, group, rates) for algorithm in LIBRARY[collective]),
        key=lambda found: found.seconds,
    )


def link_of(algorithm: Algorithm, group: Group, rates: MachineRates) -> Link:
    """Return one link that represents all hops of this group's rings or trees.

    The startup time is the mean over a ring's hops, of which ``nodes`` lead to another node, or over a tree's levels,
    of which the upper ``ceil(log2 nodes)`` do. Each rank's share of the network carries its own ring (or tree), so the
    network is ``ranks_per_node`` times as wide as one share; the narrower of network and node sets the pace.
    """
    if group.nodes == 1:
        return rates.intra
    ring, tree = group.nodes / group.ranks, levels(group.nodes) / levels(group.ranks)
    crossing = ring if algorithm == "ring" else tree
    alpha_s = (1 - crossing) * rates.intra.alpha_s + crossing * rates.inter.alpha_s
    network = rates.inter.bytes_per_s * group.ranks_per_node
    inside = rates.intra.bytes_per_s if group.ranks_per_node > 1 else network
    return Link(alpha_s=alpha_s, bytes_per_s=min(inside, network))


def _pairwise(size_bytes: float, group: Group, rates: MachineRates) -> Cost:
    """Each rank exchanges ``n / p`` with every other rank, first inside the node, then across the network."""
    near, far = group.ranks_per_node - 1, group.ranks - group.ranks_per_node
    part = size_bytes / group.ranks
    seconds = near * (rates.intra.alpha_s + part / rates.intra.bytes_per_s)
    seconds += far * (rates.inter.alpha_s + part / rates.inter.bytes_per_s)
    return Cost("pairwise", seconds, (near + far) * part, far * part, MODELS["all_to_all", "pairwise"].formula)


def _terms(collective: Collective, algorithm: Algorithm) -> Terms:
    if (found := MODELS.get((collective, algorithm))) is None:
        there = ", ".join(known for name, known in MODELS if name == collective)
        raise CostError(f"{collective} by {algorithm}: no such cost model; there are {there or 'none'}")
    return found
