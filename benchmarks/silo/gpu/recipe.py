"""The baseline: a step as torchtitan's Llama recipe makes it, of PyTorch's parts alone.

FSDP2 with bfloat16 parameters and float32 gradient sums, each block compiled and a unit of its own, the last norm and
the output a unit that stays gathered, fused AdamW, loss compiled, gradient clipped on the device, no synchronisation
with the host (pytorch/torchtitan, ``torchtitan/models/llama3`` and ``torchtitan/train.py``, 2026).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

from atoll.datacenter.data import Batch
from atoll.datacenter.job import SiloJob

_FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def recipe(job: SiloJob, model: nn.Module, batches: Sequence[Batch]) -> Callable[[], Tensor]:
    """Return the step: forward and backward pass over the next batch, update; it returns the mean loss, on the device.

    Args:
        job: a job of one rank in ``float32`` or ``bfloat16``.
        model: the job's, whole, on the device; it is changed in place. The process group must be open.
        batches: global batches on the device, taken in turn; each label counts.
    """
    _shard(model, job)
    settings = job.optimiser
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=True
    )
    loss_of = torch.compile(_loss) if job.memory.compile else _loss
    made = 0

    def step() -> Tensor:
        nonlocal made
        batch, made = batches[made % len(batches)], made + 1
        total = torch.zeros((), device=batch.tokens.device)
        for micro_batch in batch.micro_batches(job.batch.micro_batch):
            loss = loss_of(model(micro_batch.tokens), micro_batch.labels) / batch.labels.numel()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimiser.step()
        optimiser.zero_grad()
        return total

    return step


def _shard(model: nn.Module, job: SiloJob) -> None:
    policy = MixedPrecisionPolicy(param_dtype=_FORMATS[job.precision.compute], reduce_dtype=torch.float32)
    for block in model.get_submodule("blocks").children():
        if job.memory.compile:
            block.compile(fullgraph=True)
        fully_shard(block, mp_policy=policy)
    fully_shard(
        [model.get_submodule("norm"), model.get_submodule("output")], mp_policy=policy, reshard_after_forward=False
    )
    fully_shard(model, mp_policy=policy)


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
