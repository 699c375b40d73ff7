"""What Muon takes, against FLOPs that PyTorch counts and bytes that the real optimiser gathers on the fake backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from atoll.datacenter.job import SiloJob
from atoll.datacenter.machine import DATA_SHEETS
from atoll.datacenter.mesh import Meshes
from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel.apply import cut
from atoll.datacenter.plan.counting import Counting
from atoll.datacenter.plan.layout import Task, layout_of
from atoll.datacenter.plan.muon import matrices_of, muon_messages, orthogonalising
from atoll.datacenter.plan.prediction import predict_layout
from atoll.datacenter.plan.stages import shares
from atoll.datacenter.plan.step_time import Machine
from atoll.datacenter.plan.verify import fake_world
from atoll.datacenter.train.muon import is_hidden_matrix
from atoll.datacenter.train.optimiser import make_optimiser
from tests.datacenter.counted_flops import counted_flops
from tests.datacenter.plan.jobs import SMALL, example, small
from tests.datacenter.plan.own_process import in_a_process_of_its_own

MUON = {"name": "muon"}
ADAPTED = SMALL | {"lora": {"rank": 4, "targets": ["wq", "wo", "w2"]}}


def hidden_matrices(module: torch.nn.Module, blocks: str) -> list[torch.nn.Parameter]:
    """The matrices that Muon trains, as a job's step takes them."""
    return [
        parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and is_hidden_matrix(name, parameter, blocks)
    ]


@pytest.mark.parametrize("model", [SMALL, SMALL | {"kv_heads": 4, "ffn_dim": 48}, ADAPTED])
def test_flops_are_those_that_pytorch_counts_in_a_step(model: dict[str, Any]) -> None:
    job = small(model=model, optimiser=MUON)
    spec = spec_of(job.model)
    module = spec.build()
    spec.freeze(module)
    matrices = hidden_matrices(module, spec.blocks)
    for parameter in matrices:
        parameter.grad = torch.randn_like(parameter)
    optimiser = make_optimiser(matrices, job.optimiser, matrices)
    predicted = job.model.layers * orthogonalising(Task.of(job)).value
    assert predicted == counted_flops(optimiser.step) > 0


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_other_optimisers_gather_nothing(name: str) -> None:
    job = small(optimiser={"name": name}, data_parallel={"method": "zero3"})
    task, layout = Task.of(job), layout_of(job, 4)
    assert matrices_of(task) == ()
    assert [*muon_messages(task, layout, shares(layout, job.model.layers)[0])] == []


def gathered(sections: dict[str, Any], ranks: int) -> dict[str, tuple[int, int]]:
    """Calls and bytes of all-gathers by axis, in one step of the optimiser on the fake backend."""
    job = SiloJob.model_validate(sections)
    spec, layout = spec_of(job.model), layout_of(job, ranks)
    with fake_world(ranks):
        meshes = Meshes.build(layout.dims, "cpu")
        axes: dict[str, str] = {meshes.dense[axis].get_group().group_name: axis for axis in ("fsdp", "tp")}
        with torch.device("meta"):
            module = spec.build()
        cut(module, job, spec, meshes)
        module.to_empty(device="cpu")
        matrices = hidden_matrices(module, spec.blocks)
        for parameter in matrices:
            parameter.grad = torch.zeros_like(parameter)
        optimiser = make_optimiser(matrices, job.optimiser, matrices)
        with Counting() as counting:
            optimiser.step()
    found = counting.counts
    assert {call.kind for call in found.calls} <= {"all_gather"}
    return {axes[call.group]: (found.calls[call], found.whole_bytes[call]) for call in found.calls}


LAYOUTS: list[tuple[str, int, dict[str, Any]]] = [
    ("zero3", 4, {"data_parallel": {"method": "zero3"}}),
    ("hybrid and tensor parallel", 8, {"data_parallel": {"method": "zero2"}, "mesh": {"tp": 2, "dp_replicate": 2}}),
    ("adapters", 8, {"data_parallel": {"method": "zero3"}, "mesh": {"tp": 2}, "model": ADAPTED}),
]
MORE: list[tuple[str, int, dict[str, Any]]] = [
    ("tensor parallel alone", 2, {"data_parallel": {"method": "zero1"}, "mesh": {"tp": 2}}),
    ("replicas beside tensor parallel", 4, {"data_parallel": {"method": "ddp"}, "mesh": {"tp": 2}}),
]


@pytest.mark.parametrize(
    ("name", "ranks", "changed"), [*LAYOUTS, *(pytest.param(*one, marks=pytest.mark.every_layout) for one in MORE)]
)
def test_bytes_are_those_that_the_optimiser_gathers(name: str, ranks: int, changed: dict[str, Any]) -> None:
    job = {"job": {"name": "small", "steps": 1}, "model": SMALL, "batch": {"global_batch": 8}, "optimiser": MUON}
    parsed = SiloJob.model_validate(job | changed)
    task, layout = Task.of(parsed), layout_of(parsed, ranks)
    predicted: dict[str, tuple[int, int]] = {}
    for message in muon_messages(task, layout, shares(layout, parsed.model.layers)[0]):
        calls, size = predicted.get(message.axis, (0, 0))
        predicted[message.axis] = calls + int(message.count), size + int(message.total)
    assert predicted == in_a_process_of_its_own(gathered, job | changed, ranks), name
    assert predicted


def test_the_update_takes_the_iterations_on_every_rank() -> None:
    """Llama 3 8B on 8 H100s, from the sizes in its paper."""
    h100 = Machine.of(DATA_SHEETS["h100"])
    update = {}
    for name in ("adamw", "muon"):
        job = example("llama-8b", optimiser={"name": name})
        update[name] = predict_layout(Task.of(job), layout_of(job, 8), h100).time.update.value
    square, keys, wide = (
        5 * (4 * short**2 * long + 2 * short**3) for short, long in ((4096, 4096), (1024, 4096), (4096, 14336))
    )
    iterations = 32 * (2 * square + 2 * keys + 3 * wide) / float(h100.matmul("bfloat16"))
    assert iterations == pytest.approx(1.086, abs=0.001)
    assert iterations < update["muon"] - update["adamw"] < 1.3 * iterations
