"""Activations against the tensors that autograd really saves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from atoll.datacenter.models.llama import Block, rotations
from atoll.datacenter.parallel.activation import checkpoint_blocks
from atoll.datacenter.plan.activations import activations_of
from atoll.datacenter.plan.layout import Task, layout_of
from tests.datacenter.plan.jobs import SMALL, small

pytestmark = pytest.mark.slow

SEQUENCE, SEQUENCES = 128, 2


def saved_bytes(block: torch.nn.Module, hidden: Tensor, angles: Tensor) -> int:
    """Bytes of distinct storages that a forward pass leaves to its backward pass, without parameters and angles."""
    own = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    own.add(angles.untyped_storage().data_ptr())
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if (place := tensor.untyped_storage().data_ptr()) not in own:
            kept[place] = tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        block(hidden, angles)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_a_block_keeps_what_autograd_saves(compute: str, kv_heads: int) -> None:
    """Korthikanti et al. 2022, section 4.1, for this model; on a CPU, where norms are several operators."""
    job = small(
        model=SMALL | {"kv_heads": kv_heads},
        precision={"compute": compute},
        batch={"sequence": SEQUENCE, "global_batch": SEQUENCES, "micro_batch": SEQUENCES},
    )
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[compute]
    block = Block(job.model).to(dtype)
    hidden = torch.randn(SEQUENCES, SEQUENCE, job.model.dim, dtype=dtype, requires_grad=True)
    angles = rotations(torch.arange(SEQUENCE), job.model.dim // job.model.heads, job.model.rope_theta)
    task = Task.of(job, fused_norm=False)
    predicted = activations_of(task, layout_of(job, 1)).block.value
    assert saved_bytes(block, hidden, angles) == predicted


def test_full_recomputation_keeps_a_blocks_input_only() -> None:
    job = small(memory={"checkpointing": "full"}, batch={"sequence": SEQUENCE, "global_batch": 1})
    block = Block(job.model)
    checkpoint_blocks([block], job.memory)
    hidden = torch.randn(1, SEQUENCE, job.model.dim, requires_grad=True)
    angles = rotations(torch.arange(SEQUENCE), 16, 1e4)
    task = Task.of(job, fused_norm=False)
    assert saved_bytes(block, hidden, angles) == activations_of(task, layout_of(job, 1)).block.value


@pytest.mark.parametrize("checkpointing", ["none", "selective"])
def test_a_compiled_block_keeps_what_the_compiler_saves(checkpointing: str) -> None:
    """One feed-forward layer less, and the last product, which no backward pass needs."""
    job = small(
        precision={"compute": "bfloat16"},
        memory={"checkpointing": checkpointing, "compile": True},
        batch={"sequence": SEQUENCE, "global_batch": SEQUENCES, "micro_batch": SEQUENCES},
    )
    block = Block(job.model).to(torch.bfloat16)
    checkpoint_blocks([block], job.memory)
    block.compile(backend="aot_eager_decomp_partition")
    hidden = torch.randn(SEQUENCES, SEQUENCE, job.model.dim, dtype=torch.bfloat16, requires_grad=True)
    angles = rotations(torch.arange(SEQUENCE), 16, 1e4)
    predicted = activations_of(Task.of(job), layout_of(job, 1)).block.value
    assert saved_bytes(block, hidden, angles) == predicted


def test_each_kind_of_recomputation_keeps_less() -> None:
    def kept(**memory: Any) -> float:
        job = small(memory=memory)
        return activations_of(Task.of(job), layout_of(job, 1)).block.value

    budget = kept(checkpointing="budget", compile=True, budget=0.5)
    assert kept() > kept(checkpointing="selective") > kept(checkpointing="full")
    assert budget == pytest.approx((kept(compile=True) + kept(checkpointing="full", compile=True)) / 2)


def test_tensor_parallel_leaves_inputs_of_matrices_whole() -> None:
    """PyTorch keeps what it has gathered along the sequence, unlike Korthikanti et al. 2022, section 4.2.2."""
    whole, cut = (
        activations_of(Task.of(job), layout_of(job, job.mesh.tp)).block.value
        for job in (small(), small(mesh={"tp": 2}))
    )
    hidden = 2 * 4 * 128 * SMALL["dim"]
    assert cut == pytest.approx((whole - hidden) / 2 + hidden, rel=0.01)
