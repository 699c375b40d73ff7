"""Tensors that tensor parallelism gathers are kept as this rank's part, and gathered again in the backward pass."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.distributed._symmetric_memory import _test_mode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import Meshes, ParallelDims, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel.apply import make_bare
from atoll.datacenter.parallel.async_tp import check_async_tp
from atoll.datacenter.parallel.regather import Regather, regather_inputs
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import SMALL, assert_same, method, share, small_in_two, train, whole
from tests.patience import WAIT_S

TP: dict[str, Any] = {"mesh": {"tp": 2}}
GATHERED = {"memory": {"checkpointing": "gathered"}}


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.every_layout)])
def test_equal_to_one_process(ranks: int) -> None:
    (alone,) = run_ranks(train, 1, small_in_two(1))
    for one in run_ranks(train, ranks, small_in_two(ranks, **TP, **GATHERED, data_parallel=method("zero3"))):
        assert_same(one, alone)


class Gathers(TorchDispatchMode):
    """Counts gathers by functional collectives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.count = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        self.count += "all_gather_into_tensor" in str(operator)
        return operator(*args, **(kwargs or {}))


def built(job: SiloJob, meshes: Meshes) -> nn.Module:
    return make_bare(job, spec_of(job.model), meshes, torch.device("cpu"))


def gathers(sections: dict[str, Any]) -> tuple[int, int]:
    """Gathers of a model's forward and backward pass."""
    job = SiloJob.model_validate(sections)
    with join_world(WAIT_S) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), "cpu")
        module = built(job, meshes)
        batch = share(job, meshes, 0)[0]
        with Gathers() as forward:
            outputs = module(batch.tokens)
        loss = spec_of(job.model).loss(outputs.full_tensor(), batch.labels)
        with Gathers() as backward:
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return forward.count, backward.count


def gathers_of_both() -> list[tuple[int, int]]:
    """Gathers that keep their results, and those that are repeated."""
    return [gathers(small_in_two(2, **TP, **one)) for one in ({}, GATHERED)]


def test_each_input_is_gathered_once_more() -> None:
    """``tests/datacenter/plan/test_verify.py`` counts what is kept meanwhile."""
    (plain, again), _ = run_ranks(gathers_of_both, 2)
    entries = 2 * SMALL["model"]["layers"]
    assert again == (plain[0], plain[1] + entries)


def one_pass(job: SiloJob, meshes: Meshes) -> dict[str, Tensor]:
    """Gradients of a forward and a backward pass."""
    module = built(job, meshes)
    batch = share(job, meshes, 0)[0]
    spec_of(job.model).loss(module(batch.tokens).full_tensor(), batch.labels).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return {name: whole(value.grad) for name, value in module.named_parameters() if value.grad is not None}


@dataclass
class Compiled:
    """Gradients of an eager and of a compiled model, and what the graphs of its passes have.

    Attributes:
        plain: gathers of the forward and of the backward graph without the pass that repeats them.
        again: the same with it; the gradients are those of these graphs.
        fused: operators that async TP puts in.
    """

    eager: dict[str, Tensor]
    compiled: dict[str, Tensor]
    plain: list[int]
    again: list[int]
    fused: list[str]


def count_gathers(graph: GraphModule) -> int:
    return sum("all_gather_into_tensor" in str(node.target) for node in graph.graph.nodes)


def compiled(sections: dict[str, Any]) -> dict[str, Any]:
    """Return a ``Compiled`` as a dict."""
    from torch._inductor.fx_passes.micro_pipeline_tp import micro_pipeline_tp_pass  # noqa: PLC0415  # loads the compiler

    aten = torch.ops.aten

    job = SiloJob.model_validate(sections)
    found = Compiled({}, {}, [], [], [])

    def partition(graph: GraphModule, inputs: Any, **named: Any) -> Any:
        copy = GraphModule(graph, graph.graph.__deepcopy__({}))
        found.plain += map(count_gathers, min_cut_rematerialization_partition(copy, inputs, **named))
        Regather()(graph.graph)
        return min_cut_rematerialization_partition(graph, inputs, **named)

    def compiler(graph: GraphModule, _inputs: Any) -> Any:
        found.again.append(count_gathers(graph))
        copy = GraphModule(graph, graph.graph.__deepcopy__({}))
        for node in copy.graph.nodes:  # as before this pass in the compiler
            if node.target in {aten.view.default, aten._unsafe_view.default}:  # ATen's name
                node.target = aten.reshape.default
        with _test_mode(), patch.object(dist, "is_nccl_available", lambda: True):
            micro_pipeline_tp_pass(copy.graph)
        found.fused += (str(node.target) for node in copy.graph.nodes if "symm_mem" in str(node.target))
        return graph

    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition)
    compile_ = nn.Module.compile
    with (
        join_world(WAIT_S) as world,
        patch.object(nn.Module, "compile", lambda self, **_: compile_(self, backend=backend)),
    ):
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), "cpu")
        found.compiled = one_pass(job, meshes)
        found.eager = one_pass(SiloJob.model_validate({**sections, "memory": {}}), meshes)
    return asdict(found)


def test_compiled_blocks_gather_again_and_have_what_async_tp_overlaps() -> None:
    found = Compiled(**run_ranks(compiled, 2, small_in_two(2, **TP, memory={"compile": True}))[0])
    (forward, backward), (forward_again, backward_again) = found.plain, found.again
    assert forward_again == forward > 0
    assert backward_again > backward
    assert found.compiled.keys() == found.eager.keys()
    for name, gradient in found.eager.items():
        torch.testing.assert_close(found.compiled[name], gradient, rtol=0, atol=1e-6)
    assert any("fused_all_gather_matmul" in one for one in found.fused)
    assert any("fused_matmul_reduce_scatter" in one for one in found.fused)


def test_async_tp_on_a_cpu_is_refused() -> None:
    with pytest.raises(LayoutError, match="needs GPUs with peer access; this rank computes on cpu: leave it out"):
        check_async_tp(torch.device("cpu"))


class FirstRows(nn.Module):
    """Saves a slice of its input for the backward pass."""

    def forward(self, whole: Tensor) -> Tensor:
        return whole[:1] * whole[:1]


def gradient_of_a_slice() -> Tensor:
    """Return the gradient of a module that keeps a part of the batch."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    module = FirstRows()
    module.register_forward_pre_hook(lambda _module, inputs: inputs[0].redistribute(placements=[Replicate()]))
    regather_inputs([module], mesh, Shard(1))
    mine = torch.arange(8.0).view(2, 4).chunk(2, 1)[dist.get_rank()].contiguous().requires_grad_()
    part = DTensor.from_local(mine, mesh, [Shard(1)])
    module(part).to_local().sum().backward()
    assert mine.grad is not None
    return mine.grad


def test_a_slice_of_the_input_is_kept_as_it_is() -> None:
    found = run_ranks(gradient_of_a_slice, 2)
    assert [one.tolist() for one in found] == [[[0, 2], [0, 0]], [[4, 6], [0, 0]]]
