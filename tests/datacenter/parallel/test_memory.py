"""Recomputed activations change no results, and take less memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.parallel import MemorySection
from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel.activation import checkpoint_blocks
from atoll.datacenter.parallel.initial import fill
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import TWO_BLOCKS, assert_same, method, small, small_in_two, train


@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_equal_to_one_process(checkpointing: str) -> None:
    (alone,) = run_ranks(train, 1, small_in_two(1, **TWO_BLOCKS), 3)
    sections: dict[str, Any] = {"mesh": {"tp": 2}, "data_parallel": method("zero3"), **TWO_BLOCKS}
    for one in run_ranks(train, 4, small_in_two(4, memory={"checkpointing": checkpointing}, **sections), 3):
        assert_same(one, alone)


def kept_bytes(checkpointing: str) -> int:
    """Return the bytes that autograd keeps of a forward pass, without parameters."""
    job = SiloJob.model_validate(small(model={"layers": 4}))
    spec = spec_of(job.model)
    module = spec.build()
    fill(module, spec.initial, 1)
    checkpoint_blocks(
        spec.blocks_of(module).values(),
        MemorySection(checkpointing=checkpointing),  # type: ignore[arg-type]  # one of them
    )
    owned = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, int] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        outputs = module(torch.zeros(4, 16, dtype=torch.int64))
    del outputs
    return sum(kept.values())


def test_full_keeps_less_than_none() -> None:
    none, full = kept_bytes("none"), kept_bytes("full")
    assert full < none / 4
