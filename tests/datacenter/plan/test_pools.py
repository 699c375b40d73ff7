"""Memory of FSDP's streams: what the plan says of them against FSDP's real allocations, by stream."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
import torch

from atoll.datacenter.job import SiloJob
from atoll.datacenter.plan import verify
from atoll.datacenter.plan.counting import Counting
from atoll.datacenter.plan.layout import Task, layout_of
from atoll.datacenter.plan.memory import peak, peak_of_passes
from atoll.datacenter.plan.pools import pools_of
from atoll.datacenter.plan.stages import shares
from tests.datacenter.plan.jobs import small
from tests.datacenter.plan.own_process import in_a_process_of_its_own

pytestmark = pytest.mark.slow

MODEL = {"dim": 256, "heads": 8, "kv_heads": 4, "ffn_dim": 704, "vocab": 2048, "layers": 4}


class ByStream(Counting):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Also counts live memory by the stream that is current when a tensor is made."""

    def __init__(self) -> None:
        super().__init__()
        self.usual = torch.cpu.current_stream()
        self._made_in: dict[int, torch.cpu.Stream] = {}
        self._live: Counter[torch.cpu.Stream] = Counter()
        self.peaks: Counter[torch.cpu.Stream] = Counter()

    def _sized(self, key: int, size: int) -> None:
        if key in self._storages:
            stream = self._made_in.setdefault(key, torch.cpu.current_stream())
            self._live[stream] += size - self._storages[key]
            self.peaks[stream] = max(self.peaks[stream], self._live[stream])
        super()._sized(key, size)

    def _forget(self, key: int) -> None:
        stream = self._made_in.pop(key, None)
        if stream is not None:
            self._live[stream] -= self._storages[key]
        super()._forget(key)


def peaks_of_other_streams(sections: dict[str, Any], ranks: int) -> list[int]:
    """Most bytes of each stream other than the usual one, in one step on the fake backend; smallest first."""
    found: list[ByStream] = []

    def counting() -> ByStream:
        found.append(ByStream())
        return found[0]

    job = SiloJob.model_validate(sections)
    with patch.object(verify, "Counting", counting):
        verify.verify(Task.of(job), layout_of(job, ranks))
    return sorted(most for stream, most in found[0].peaks.items() if stream is not found[0].usual and most)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_fsdp_takes_gathers_and_shards_from_streams_of_their_own(compute: str) -> None:
    """So a GPU's allocator reserves them beside the passes' tensors. A cast for a gather is not in the plan."""
    ranks = 4
    sections = {
        "job": {"name": "streams", "steps": 1},
        "model": MODEL,
        "batch": {"sequence": 256, "global_batch": ranks},
        "precision": {"compute": compute},
        "data_parallel": {"method": "zero3"},
    }
    measured = in_a_process_of_its_own(peaks_of_other_streams, sections, ranks)
    job = SiloJob.model_validate(sections)
    layout = layout_of(job, ranks)
    pools = pools_of(Task.of(job), layout, shares(layout, job.model.layers)[0])
    assert measured == pytest.approx(sorted([pools.gathers.value, pools.shards.value]), rel=0.15)


@pytest.mark.parametrize("method", ["zero1", "zero3"])
def test_reserved_memory_is_that_of_the_passes_and_of_the_streams(method: str) -> None:
    job = small(data_parallel={"method": method}, batch={"global_batch": 4, "sequence": 256})
    task, layout = Task.of(job), layout_of(job, 4)
    (share,) = shares(layout, job.model.layers)
    fullest, pools = peak(task, layout, share), pools_of(task, layout, share)
    assert fullest.memory.size == fullest.memory.allocated + fullest.memory.idle.value
    assert peak_of_passes(task, layout, share).memory.idle.value == 0
    beside = pools.gathers.value - pools.gathering.get(fullest.moment, pools.gathers - pools.gathers).value
    shards = 0 if fullest.memory.gradients is pools.shards else pools.shards.value
    assert fullest.memory.idle.value == beside + shards


def test_ddp_has_no_such_streams() -> None:
    job = small(data_parallel={"method": "ddp"})
    layout = layout_of(job, 4)
    (share,) = shares(layout, job.model.layers)
    assert peak(Task.of(job), layout, share).memory.idle.value == 0
