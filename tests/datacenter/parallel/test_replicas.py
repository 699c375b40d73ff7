"""Replicas that differ are found and named."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.parallel.replicas import check_replicas, checksum, difference, named_values
from tests.datacenter.ranks import run_ranks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool])
def test_any_changed_bit_and_any_swap_change_the_sum(dtype: torch.dtype) -> None:
    values = torch.arange(24).reshape(4, 6).remainder(7).to(dtype)
    before = int(checksum(values))
    for place in range(24):
        changed = values.clone()
        changed.view(-1)[place] = not changed.view(-1)[place] if dtype is torch.bool else changed.view(-1)[place] + 1
        assert int(checksum(changed)) != before
    swapped = values.clone()
    swapped.view(-1)[[0, 1]] = swapped.view(-1)[[1, 0]]
    assert int(checksum(swapped)) != before
    assert int(checksum(values.clone())) == before


def test_zero_and_minus_zero_differ() -> None:
    assert int(checksum(torch.tensor([0.0]))) != int(checksum(torch.tensor([-0.0])))


@pytest.mark.parametrize(
    ("sums", "says"),
    [
        ([[1, 2], [1, 2]], None),
        ([[1, 2, 3], [1, 5, 9], [1, 2, 3]], "first in b: rank 1 of 3"),
        ([[7, 2, 3], [1, 2, 3], [1, 2, 3]], "first in a: rank 0 of 3"),
        ([[1, 2, 3], [1, 2, 4]], "first in c: rank 1 of 2"),
        ([[1, 2, 3], [1, 2, 4], [1, 2, 3], [1, 2, 5]], "first in c: ranks 1, 3 of 4"),
    ],
)
def test_the_first_difference_is_named(sums: list[list[int]], says: str | None) -> None:
    found = difference("abc"[: len(sums[0])], sums)
    assert found is None if says is None else found is not None and says in found


def damaged() -> str:
    """Equal at first; then one bit of rank 1's last bias flips."""
    torch.manual_seed(0)
    last = nn.Linear(7, 3)
    module = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), last)
    group = dist.group.WORLD
    assert group is not None
    check_replicas(named_values([module]), group, 4)
    if dist.get_rank() == 1:
        with torch.no_grad():
            last.bias[1] = torch.nextafter(last.bias[1], torch.tensor(9.0))
    with pytest.raises(TrainingError) as caught:
        check_replicas(named_values([module]), group, 5)
    return str(caught.value)


def test_every_rank_reports_the_rank_that_differs() -> None:
    for says in run_ranks(damaged, 3):
        assert says.startswith("step 5: replicas differ first in 2.bias: rank 1 of 3; ")
