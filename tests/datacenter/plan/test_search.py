"""Layouts that the search considers, keeps and refuses."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.machine import DATA_SHEETS
from atoll.datacenter.plan.candidates import meshes
from atoll.datacenter.plan.layout import METHODS, Layout, Task, job_with, layout_of
from atoll.datacenter.plan.prediction import predict_layout
from atoll.datacenter.plan.search import NothingFitsError, search
from atoll.datacenter.plan.stages import shares
from atoll.datacenter.plan.step_time import Machine, group_of
from atoll.datacenter.plan.traffic import messages
from tests.datacenter.plan.jobs import SMALL, example, small

pytestmark = pytest.mark.slow

H100 = Machine.of(DATA_SHEETS["h100"])


def test_what_is_found_fits_divides_and_is_ranked() -> None:
    job = example("llama-8b")
    calls: list[tuple[int, int]] = []
    found = search(Task.of(job), 8, H100, progress=lambda done, of: calls.append((done, of)))
    assert calls[-1][0] == calls[-1][1] == len(calls)
    steps = [one.step.value for one in found.best]
    assert steps == sorted(steps)
    assert len({one.layout.dims for one in found.best}) == len(found.best)
    assert found.considered > found.fitting > len(found.best)
    for one in found.best:
        dims = one.layout.dims
        assert one.fits
        assert dims.world_size == 8
        assert job.model.kv_heads % dims.tp == 0
        assert dims.batch * one.layout.micro_batch * one.layout.micro_batches == job.batch.global_batch
        assert layout_of(job_with(job, one.layout), 8) == one.layout


def test_layouts_are_such_as_the_trainer_takes() -> None:
    """Each layout that the search considers passes the checks that training begins with."""
    looked_at: dict[tuple[object, ...], Layout] = {}

    def wanted(layout: Layout) -> bool:
        one = (layout.schedule, layout.method, layout.checkpointing, layout.dims.pp, layout.dims.cp, layout.dims.tp)
        looked_at.setdefault(one, layout)
        return True

    job = small(batch={"sequence": 4096, "global_batch": 32}, model=SMALL | {"layers": 8})
    search(Task.of(job), 8, H100, wanted=wanted)
    assert {layout.schedule for layout in looked_at.values()} >= {"zbv", "dualpipev", "interleaved_zero_bubble"}
    for layout in looked_at.values():
        assert check_layout(job_with(job, layout), 8) == layout.dims


@pytest.mark.parametrize("more", [{}, {"moe": {"experts": 8, "expert_dim": 64}}, {"lora": {"rank": 2}}])
def test_nothing_is_sent_along_an_axis_of_one_rank(more: dict[str, Any]) -> None:
    job = small(batch={"sequence": 4096, "global_batch": 32}, model=SMALL | more)
    task, axes = Task.of(job), set()
    for dims in meshes(task, 8, ranks_per_node=8):
        for method in METHODS:
            layout = Layout(dims, method, 1, 32 // dims.batch, "none")
            for share in shares(layout, job.model.layers):
                sent = {message.axis for message in messages(task, layout, share)}
                assert {axis for axis in sent if group_of(axis, dims, 8).ranks == 1} == set(), layout.describe()
                axes |= sent
    assert axes >= {"fsdp", "tp", "cp", "pp", "loss", "dp_replicate"} | ({"ep", "efsdp"} if "moe" in more else set())


def test_only_what_is_wanted() -> None:
    def wanted(layout: Layout) -> bool:
        return layout.dims.tp == 2 and layout.method == "zero1"

    found = search(Task.of(example("llama-8b")), 8, H100, wanted=wanted)
    assert {(one.layout.dims.tp, one.layout.method) for one in found.best} == {(2, "zero1")}


def test_nothing_fits_says_what_is_closest_and_what_would_help() -> None:
    with pytest.raises(NothingFitsError) as refused:
        search(Task.of(example("llama-70b", batch={"global_batch": 8})), 8, H100)
    text = str(refused.value)
    assert "fits 75.6 GiB of NVIDIA H100 SXM 80 GB; closest: " in text
    assert "states" in text
    assert "with zero3 and data_parallel.cpu_offload = true: " in text
    assert "on 16 ranks: " in text
    assert "with batch.sequence = 4096: " in text


def test_nothing_divides() -> None:
    with pytest.raises(LayoutError, match=r"no layout of 7 ranks divides heads = 4, .*global_batch = 8"):
        search(Task.of(small()), 7, H100)


def test_a_layout_that_does_not_share_the_batch_evenly_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"global_batch = 8 is not a multiple of 3 .* micro_batch 1 = 3"):
        layout_of(small(), 3)


def test_more_ranks_in_a_node_make_tensor_parallel_cheaper() -> None:
    job = example("llama-8b", mesh={"tp": 8})
    near = predict_layout(Task.of(job), layout_of(job, 8), H100)
    apart = Machine(H100.rates.model_copy(update={"ranks_per_node": 1}), H100.efficiency)
    far = predict_layout(Task.of(job), layout_of(job, 8), apart)
    assert far.time.collectives.value > 5 * near.time.collectives.value
    assert far.time.compute.value == near.time.compute.value
