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
from tests.datacenter.training import assert_same, method, small, small_in_two, train

TP: dict[str, Any] = {"mesh": {"tp": 2}}
ZERO3: dict[str, Any] = {"data_parallel": method("zero3")}
every_layout = pytest.mark.every_layout


@pytest.mark.parametrize(
    ("checkpointing", "ranks", "sections"),
    [
        pytest.param("selective", 2, {}, id="selective-ddp-2"),
        pytest.param("selective", 2, TP, id="selective-tp-2", marks=every_layout),
        pytest.param("full", 2, ZERO3, id="full-zero3-2"),
        pytest.param("selective", 4, TP | ZERO3, id="selective-zero3-2-tp-2", marks=every_layout),
        pytest.param("full", 4, TP | ZERO3, id="full-zero3-2-tp-2", marks=every_layout),
    ],
)
def test_equal_to_one_process(checkpointing: str, ranks: int, sections: dict[str, Any]) -> None:
    (alone,) = run_ranks(train, 1, small_in_two(1))
    for one in run_ranks(train, ranks, small_in_two(ranks, memory={"checkpointing": checkpointing}, **sections)):
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
