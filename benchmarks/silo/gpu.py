"""One GPU: share of its peak (MFU) on about a billion parameters, beside a bare PyTorch loop; float8 beside bfloat16.

Without a GPU nothing is measured, and that is said. Step by step in turn, as ``overhead``; the process group is NCCL's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from atoll.datacenter.data import Batch, open_batches
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import ParallelDims, World, join_world
from atoll.datacenter.metrics.facts import facts_of
from atoll.datacenter.models import spec_of
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import open_trainer
from benchmarks.figures import Figure
from benchmarks.options import progress

COMMAND = "python -m benchmarks.silo gpu"
MFU, OF_BARE, FLOAT8 = 50.0, 0.98, 1.0
_STEPS, _WARM_UP = 20, 5
_TIMEOUT_S = 600.0
JOB: dict[str, Any] = {
    "job": {"name": "gpu", "steps": 1000},
    "model": {"layers": 20, "dim": 2048, "heads": 16, "ffn_dim": 5632, "vocab": 32768},
    "batch": {"sequence": 4096, "global_batch": 4, "micro_batch": 2},
    "precision": {"compute": "bfloat16"},
    "memory": {"compile": True},
}


def run(smoke: bool) -> list[Figure]:
    """Nothing without a GPU."""
    if smoke or not torch.cuda.is_available():
        progress("gpu: not run on GPU: this machine has none")
        return []
    with join_world(_TIMEOUT_S) as world:
        ours, bare, peak, flops = _measure(JOB, world, beside=True)
        fast, _, _, _ = _measure({**JOB, "precision": {"compute": "float8"}}, world, beside=False)
        backend = dist.get_backend()
    what = f"1.2 billion parameters, {torch.cuda.get_device_name()}, {backend}, bfloat16, compiled, sequence 4096"
    found = [Figure.stated(f"tokens/s: {what}", ours, "1/s", COMMAND)]
    if peak is not None:
        share = 100 * ours * flops / peak
        found.append(Figure.at_least("  of the peak that the data sheet gives (MFU)", share, "%", MFU, COMMAND))
    found.append(Figure.at_least("  of the bare loop's", ours / bare, "times", OF_BARE, COMMAND))
    found.append(Figure.at_least("  float8 beside bfloat16", fast / ours, "times", FLOAT8, COMMAND))
    return found


def _measure(sections: dict[str, Any], world: World, *, beside: bool) -> tuple[float, float, float | None, float]:
    """Tokens/s of the trainer and of the bare loop (0 without), peak FLOP/s, and FLOPs of a token."""
    job = SiloJob.model_validate(sections)
    facts = facts_of(job, spec_of(job.model), ParallelDims(), world.device, Path())
    seconds: dict[str, list[float]] = {"trainer": [], "bare": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        open_trainer(job, Path(folder), world, Unwatched(), console=False) as trainer,
    ):
        ways: dict[str, Callable[[], object]] = {"trainer": trainer.advance}
        if beside:
            ways["bare"] = _bare(job, world.device)
        for number in range(_STEPS + _WARM_UP):
            for name in sorted(ways, reverse=bool(number % 2)):
                torch.cuda.synchronize()
                began = time.perf_counter()
                ways[name]()
                torch.cuda.synchronize()
                if number >= _WARM_UP:
                    seconds[name].append(time.perf_counter() - began)
    tokens = job.batch.global_batch * job.batch.sequence
    rates = {name: tokens / median(found) if found else 0.0 for name, found in seconds.items()}
    return rates["trainer"], rates["bare"], facts.peak_flops_per_s, facts.flops_per_token


def _bare(job: SiloJob, device: torch.device) -> Callable[[], object]:
    """A step as one would write it down: autocast, blocks compiled one by one, fused AdamW."""
    spec = spec_of(job.model)
    model = spec.build().to(device)
    for block in getattr(model, spec.blocks).values():
        block.compile()
    optimiser = torch.optim.AdamW(model.parameters(), lr=job.optimiser.lr, betas=job.optimiser.betas, fused=True)
    steps = open_batches(job.data, job.batch, job.job.seed, Path())
    kept: list[Batch] = [steps.next_step().share(0, 1).to(device) for _ in range(4)]
    made = 0

    def step() -> None:
        nonlocal made
        batch, made = kept[made % len(kept)], made + 1
        micro_batches = list(batch.micro_batches(job.batch.micro_batch))
        for micro_batch in micro_batches:
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(micro_batch.tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), micro_batch.labels.flatten())
            (loss / len(micro_batches)).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()

    return step
