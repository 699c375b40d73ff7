"""Degrees, and the numbers in their errors."""

from __future__ import annotations

import pytest

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job.parallel import MeshSection
from atoll.datacenter.mesh import ParallelDims


def test_dp_shard_is_the_rest_of_the_ranks() -> None:
    dims = ParallelDims.of(MeshSection(pp=2, tp=4, cp=2, ep=4), 64)
    assert (dims.dp_shard, dims.fsdp, dims.efsdp, dims.batch, dims.loss) == (4, 8, 2, 4, 8)
    assert dims.world_size == 64
    assert dims.describe() == "pp 2 x dp_shard 4 x cp 2 x tp 4 x ep 4"


@pytest.mark.parametrize(
    ("section", "world", "says"),
    [
        (MeshSection(pp=2, tp=3), 8, "8 ranks are not a multiple of pp 2 * dp_replicate 1 * cp 1 * tp 3 = 6"),
        (MeshSection(dp_shard=3), 8, "= 3 ranks, but there are 8: start 3, or set dp_shard = -1"),
        (MeshSection(ep=3), 8, "ep = 3 does not divide dp_shard * cp = 8 * 1 = 8"),
    ],
)
def test_degrees_that_do_not_fit_are_refused_with_the_numbers(section: MeshSection, world: int, says: str) -> None:
    with pytest.raises(LayoutError) as caught:
        ParallelDims.of(section, world)
    assert says in str(caught.value)
