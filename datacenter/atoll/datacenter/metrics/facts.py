"""Facts that do not change while a job runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atoll.datacenter.machine.rates import rates_beside, sheet_of
from atoll.datacenter.metrics import RunFacts
from atoll.datacenter.metrics.flops import ModelFlops, llama_flops

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import ParallelDims
    from atoll.datacenter.models import ModelSpec


def facts_of(job: SiloJob, spec: ModelSpec, dims: ParallelDims, device: torch.device, folder: Path) -> RunFacts:
    """Return the facts of a job on this machine; ``folder`` is the folder of the job file.

    Raises:
        RatesError: if ``metrics.rates`` names no known rates, or a file that does not hold rates.
        OSError: if that file cannot be read.
    """
    flops = llama_flops(job.model, job.batch.sequence) if job.model.kind == "llama" else _six_per_weight(spec)
    return RunFacts(
        job=job.job.name,
        layout=dims.describe(),
        world_size=dims.world_size,
        total_steps=job.job.steps,
        parameters=flops.parameters,
        active_parameters=flops.active_parameters,
        flops_per_token=flops.per_token,
        flops_formula=flops.formula,
        peak_flops_per_s=_peak(job, device, folder),
    )


def _six_per_weight(spec: ModelSpec) -> ModelFlops:
    """FLOPs of any other model, as if each token passed through each matrix once (Kaplan et al. 2020, section 2.1)."""
    with torch.device("meta"):
        parameters = list(spec.build().parameters())
    total = sum(parameter.numel() for parameter in parameters)
    matrices = sum(parameter.numel() for parameter in parameters if parameter.dim() >= 2)
    return ModelFlops(6.0 * matrices, f"6 * matrix weights {matrices:,} = {6 * matrices:,}", total, total)


def named_peak(job: SiloJob, folder: Path) -> float | None:
    """Return the FLOP/s of the rates that the job names; None if it names none.

    Raises:
        RatesError: if there are no such rates, none for the job's format, or the file does not hold rates.
        OSError: if that file cannot be read.
    """
    named = job.metrics.rates
    if named is None:
        return None
    return rates_beside(named, folder).matmul(job.precision.compute)


def _peak(job: SiloJob, device: torch.device, folder: Path) -> float | None:
    """Return the job's rate, else a data sheet's for this GPU; None for a CPU, for which there is no data sheet."""
    if job.metrics.rates is not None:
        return named_peak(job, folder)
    if device.type != "cuda":
        return None
    sheet = sheet_of(torch.cuda.get_device_name(device))
    return None if sheet is None else sheet.matmul_flops_per_s.known().get(job.precision.compute)
