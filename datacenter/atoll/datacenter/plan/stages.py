"""Assignment of blocks to pipeline stages, and of stages to ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from atoll.datacenter.parallel.pipeline.deal import deal
from atoll.datacenter.plan.bubble import V_SHAPED

if TYPE_CHECKING:
    from atoll.datacenter.plan.layout import Layout


@dataclass(frozen=True, slots=True)
class Share:
    """Blocks, embeddings and head that one rank along ``pp`` holds.

    Attributes:
        rank: number of the rank along ``pp``.
        blocks: blocks of each of its stages.
        first: whether it has the embedding.
        last: whether it has the last norm and the output.
    """

    rank: int
    blocks: tuple[int, ...]
    first: bool
    last: bool

    @property
    def all_blocks(self) -> int:
        """Blocks of all its stages."""
        return sum(self.blocks)


@lru_cache(maxsize=1024)
def blocks_by_stage(layers: int, stages: int) -> tuple[int, ...]:
    """Return the blocks of each stage as the pipeline assigns them; embedding and output count as one block each.

    Raises:
        LayoutError: if there are fewer blocks than stages.
    """
    return tuple(len(stage) for stage in deal((1.0,) * layers, stages, first=1.0, last=1.0))


def shares(layout: Layout, layers: int) -> tuple[Share, ...]:
    """Return what each rank along ``pp`` holds."""
    return _shares(layout.dims.pp, layout.stages_per_rank, layout.schedule in V_SHAPED, layers)


@lru_cache(maxsize=1024)
def _shares(ranks: int, per_rank: int, folded: bool, layers: int) -> tuple[Share, ...]:
    stages = ranks * per_rank
    counts = blocks_by_stage(layers, stages)
    found = []
    for rank in range(ranks):
        held = (rank, stages - 1 - rank) if folded and ranks > 1 else tuple(range(rank, stages, ranks))
        blocks = tuple(counts[stage] for stage in held)
        found.append(Share(rank, blocks, first=0 in held, last=stages - 1 in held))
    return tuple(found)
