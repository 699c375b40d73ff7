"""Degrees of the mesh axes: one frozen value whose product is the number of ranks.

Axes from outermost to innermost, so that the axes with the most traffic stay within a node::

    pp            pipeline stages
    dp_replicate  whole replicas
    dp_shard      replicas that shard parameters, gradients and optimiser states
    cp            parts of the sequence
    tp            parts of matrices

``ep`` is not a further factor: experts are spread over ``ep`` of the ``dp_shard * cp`` ranks, the innermost ones. The
remaining factor, ``efsdp``, shards each expert's parameters.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job.parallel import REST, MeshSection


@dataclass(frozen=True, slots=True)
class ParallelDims:
    """Degrees of the axes, each at least 1.

    Raises:
        LayoutError: if a degree is below 1, or ``ep`` does not divide ``dp_shard * cp``.
    """

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        problems = [f"{axis} = {degree}: a degree is at least 1" for axis, degree in asdict(self).items() if degree < 1]
        if not problems and self.fsdp % self.ep:
            problems.append(f"ep = {self.ep} does not divide dp_shard * cp = {self.dp_shard} * {self.cp} = {self.fsdp}")
        if problems:
            raise LayoutError(*problems)

    @classmethod
    def of(cls, section: MeshSection, world_size: int) -> ParallelDims:
        """Return the job's degrees on this many ranks, with ``dp_shard = -1`` filled in.

        Raises:
            LayoutError: if their product is not the number of ranks; names every degree.
        """
        said = f"pp {section.pp} * dp_replicate {section.dp_replicate} * cp {section.cp} * tp {section.tp}"
        fixed = section.pp * section.dp_replicate * section.cp * section.tp
        shard = section.dp_shard
        if shard == REST:
            if world_size % fixed:
                raise LayoutError(
                    f"{world_size} ranks are not a multiple of {said} = {fixed}: "
                    f"start a multiple of {fixed}, or change the degrees"
                )
            shard = world_size // fixed
        if fixed * shard != world_size:
            raise LayoutError(
                f"{said} * dp_shard {shard} = {fixed * shard} ranks, but there are {world_size}: "
                f"start {fixed * shard}, or set dp_shard = -1"
            )
        return cls(section.pp, section.dp_replicate, shard, section.cp, section.tp, section.ep)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod((self.pp, self.dp_replicate, self.dp_shard, self.cp, self.tp))

    @property
    def batch(self) -> int:
        """Ranks that train on different sequences: ``dp_replicate * dp_shard``."""
        return self.dp_replicate * self.dp_shard

    @property
    def loss(self) -> int:
        """Ranks whose token losses are summed: ``batch * cp``."""
        return self.batch * self.cp

    @property
    def fsdp(self) -> int:
        """Ranks over which parameters are sharded: ``dp_shard * cp``."""
        return self.dp_shard * self.cp

    @property
    def efsdp(self) -> int:
        """Ranks over which one expert's parameters are sharded: ``fsdp / ep``."""
        return self.fsdp // self.ep

    def describe(self) -> str:
        """Return the degrees above 1, e.g. ``pp 2 x dp_shard 4 x tp 2``; ``one rank`` if there are none."""
        return " x ".join(f"{axis} {degree}" for axis, degree in asdict(self).items() if degree > 1) or "one rank"
