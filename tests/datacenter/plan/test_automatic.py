from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.machine import DATA_SHEETS
from atoll.datacenter.models import ModelSpec, spec_of
from atoll.datacenter.models.plain import plain_spec
from atoll.datacenter.plan.automatic import choose_layout, replica_bytes
from atoll.datacenter.plan.layout import Task, job_with, layout_of
from atoll.datacenter.plan.search import NothingFitsError, search
from atoll.datacenter.plan.step_time import Machine
from tests.datacenter.plan.jobs import LLAMA_405B, small

H100 = Machine.of(DATA_SHEETS["h100"])


def test_a_known_model_gets_the_fastest_layout_of_the_plan() -> None:
    job = small(optimiser={"lr": 1e-4})
    chosen = choose_layout(job, spec_of(job.model), 8, H100)
    fastest = search(Task.of(job), 8, H100).best[0].layout
    assert layout_of(chosen.job, 8) == chosen.layout == fastest
    assert chosen.job.optimiser.lr == 1e-4
    assert chosen.reason.endswith(" that fit NVIDIA H100 SXM 80 GB, by prediction")
    assert "the fastest of" in chosen.reason
    check_layout(chosen.job, 8)


def test_a_known_model_that_fits_no_layout_is_refused() -> None:
    job = small(model=LLAMA_405B, batch={"global_batch": 8, "sequence": 8192})
    with pytest.raises(NothingFitsError, match="none of"):
        choose_layout(job, spec_of(job.model), 8, H100)
    with pytest.raises(
        NothingFitsError, match=r"GiB of here \(79\.6 GiB for each rank; speeds of NVIDIA H100 SXM 80 GB\)"
    ):
        choose_layout(job, spec_of(job.model), 8, dataclasses.replace(H100, device="here"))


PRIVATE = {"noise_multiplier": 1.0}
IN_PLACE = {"faults": {"recovery": "in-place"}}


@pytest.mark.parametrize(
    "sections",
    [
        {"privacy": PRIVATE},
        {"privacy": PRIVATE | {"mode": "hooks"}},
        IN_PLACE,
        {"data_parallel": {"method": "ddp", "uneven": True}},
    ],
    ids=["ghost", "hooks", "in-place", "uneven"],
)
def test_the_plan_has_only_layouts_that_the_settings_permit(sections: dict[str, Any]) -> None:
    best = search(Task.of(small(**sections)), 4, H100).best
    assert best
    for one in best:
        check_layout(job_with(small(**sections), one.layout), 4)
    meshes = {one.layout.dims for one in search(Task.of(small()), 4, H100).best}
    assert {one.layout.dims for one in best} < meshes
    job = small(**sections)
    private = choose_layout(job, spec_of(job.model), 4, H100).reason.endswith(
        "by prediction without what [privacy] adds"
    )
    assert private == (job.privacy is not None)


def test_a_batch_that_privacy_cannot_divide_is_told() -> None:
    job = small(privacy=PRIVATE, batch={"global_batch": 2})
    with pytest.raises(LayoutError, match=r"no layout of 4 ranks .*, and \[privacy\] permits data parallelism only: "):
        choose_layout(job, spec_of(job.model), 4, H100)


def test_an_asynchronous_job_has_no_layout() -> None:
    job = small(asynchrony={"method": "parameter_server"})
    with pytest.raises(LayoutError, match=r'\[asynchrony\] with layout "auto": parameter_server has no layout'):
        choose_layout(job, spec_of(job.model), 4, H100)


GIB = 2**30


def own(**sections: Any) -> SiloJob:
    return SiloJob.model_validate(
        {"job": {"name": "own", "steps": 1}, "model": {"kind": "mine:module"}, "data": {"source": "mine:dataset"}}
        | {"batch": {"global_batch": 64, "micro_batch": 32}, "mesh": {"dp_replicate": 2}}
        | sections
    )


def spec_with(gib_of_adamw: float) -> ModelSpec:
    """The spec of a module that takes this much memory with its gradients and AdamW's states."""
    with torch.device("meta"):
        return plain_spec(nn.Linear(1024, int(gib_of_adamw * GIB / 16 / 1024), bias=False))


@pytest.mark.parametrize(
    ("batch", "ranks", "gib", "micro_batch", "method"),
    [
        ({"global_batch": 64, "micro_batch": 32}, 4, 39, 16, "ddp"),
        ({"global_batch": 64, "micro_batch": 32}, 4, 41, 16, "zero3"),
        ({"global_batch": 48, "micro_batch": 5}, 4, 41, 4, "zero3"),
        ({"global_batch": 64, "micro_batch": 2}, 1, 41, 2, "ddp"),
    ],
)
def test_a_model_of_another_kind_is_sharded_unless_replicas_fit_half_of_a_device(
    batch: dict[str, Any], ranks: int, gib: float, micro_batch: int, method: str
) -> None:
    chosen = choose_layout(own(batch=batch), spec_with(gib), ranks, H100)
    assert (chosen.job.data_parallel.method, chosen.job.batch.micro_batch) == (method, micro_batch)
    mesh = chosen.job.mesh
    assert (mesh.dp_replicate, mesh.dp_shard) == ((ranks, 1) if method == "ddp" else (1, ranks))
    assert layout_of(chosen.job, ranks) == chosen.layout
    assert f"{gib}.00 GiB of parameters" in chosen.reason
    assert "39.8 GiB, half of a device (NVIDIA H100 SXM 80 GB);" in chosen.reason
    assert "mine:module" in chosen.reason


@pytest.mark.parametrize(
    "sections",
    [
        {"data_parallel": {"cpu_offload": True}},
        {"precision": {"compute": "float8", "float8_gather": True}},
    ],
)
def test_settings_that_need_shards_have_them(sections: dict[str, Any]) -> None:
    for ranks in (1, 2):
        chosen = choose_layout(own(**sections), spec_with(1), ranks, H100)
        assert chosen.job.data_parallel.method == "zero3"
        assert chosen.job.data_parallel.cpu_offload == ("data_parallel" in sections)


def test_settings_that_need_replicas_have_them() -> None:
    hooks = own(privacy=PRIVATE | {"mode": "hooks"})
    chosen = choose_layout(hooks, spec_with(41), 4, H100)
    assert (chosen.layout.method, chosen.reason) == ("ddp", 'privacy.mode = "hooks" needs whole replicas')
    dims = choose_layout(own(**IN_PLACE), spec_with(41), 4, H100).layout.dims
    assert (dims.dp_replicate, dims.dp_shard) == (2, 2)
    assert choose_layout(own(privacy=PRIVATE), spec_with(41), 4, H100).layout.method == "zero3"


@pytest.mark.parametrize(("gib", "uneven"), [(1, True), (41, False)])
def test_settings_of_replicas_go_with_them(gib: float, uneven: bool) -> None:
    chosen = choose_layout(own(data_parallel={"method": "ddp", "uneven": True}), spec_with(gib), 2, H100)
    assert chosen.job.data_parallel.uneven == uneven


def test_a_replica_has_states_of_its_optimiser_for_what_is_trained() -> None:
    spec = spec_with(16)
    assert replica_bytes(own(), spec) == 16 * GIB
    assert replica_bytes(own(optimiser={"name": "sgd"}), spec) == 8 * GIB
    assert replica_bytes(own(optimiser={"name": "sgd", "momentum": 0.9}), spec) == 12 * GIB
    assert replica_bytes(own(), dataclasses.replace(spec, trained=lambda _name: False)) == 4 * GIB
