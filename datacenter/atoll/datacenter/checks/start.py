"""Check that a job can start on this machine: everything that can be known before a process starts."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from atoll.datacenter.checkpoint import check_model
from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.data import open_held_out, open_job_batches
from atoll.datacenter.errors import CheckpointError, LayoutError
from atoll.datacenter.metrics.facts import named_peak
from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel.async_tp import check_async_tp
from atoll.datacenter.parallel.float8 import check_float8

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.job.operation import Numa


def check_job(job: SiloJob, folder: Path, nproc: int, nodes: Iterable[int]) -> int | None:
    """Check everything that can be known before a process starts.

    Args:
        job: the parsed job file.
        folder: folder of the job file.
        nproc: ranks on each node.
        nodes: numbers of nodes that the job must fit: the largest and the smallest that it may run on.

    Returns:
        Step of the newest checkpoint, from which the job continues if that checkpoint is intact; None for a new job.

    Raises:
        LayoutError: if the job does not fit the largest or the smallest number of nodes, this machine's GPUs, or the
            weights it starts from.
        CheckpointError: if the newest checkpoint is of another model, or none can be written.
        DataError: if the data is missing, damaged, too little, not for this model, or not the checkpoint's.
        MissingExtraError: if a required library is not installed.
        RatesError: if the rates named by the job do not exist.
        OSError: if a file named by the job cannot be read.
    """
    for count in sorted(set(nodes), reverse=True):
        check_layout(job, count * nproc)
    check_devices(job, nproc)
    named_peak(job, folder)
    batches = open_job_batches(job, folder)
    open_held_out(job, folder)
    if job.checkpoint.folder is None:
        return None
    compared = batches if job.privacy is None else None  # a private job samples the data; ranks compare their draws
    step = check_model(folder / job.checkpoint.folder, spec_of(job.model), compared)
    check_writable(folder / job.checkpoint.folder)
    return step


def check_devices(job: SiloJob, nproc: int) -> None:
    """Check that either every rank of this machine has a GPU or none has, and that the GPUs support the number format.

    Raises:
        LayoutError: naming the number of GPUs, or what is missing.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus and nproc > gpus:
        raise LayoutError(
            f"--nproc {nproc}: this machine has {gpus} GPUs; start as many processes, or hide the GPUs with "
            "CUDA_VISIBLE_DEVICES= to train on the CPU"
        )
    check_numa(job.processes.numa)
    device = torch.device("cuda" if gpus else "cpu")
    if job.precision.compute == "float8":
        check_float8(device)
    if job.tensor_parallel.asynchronous:
        check_async_tp(device)


def check_numa(mode: Numa) -> None:
    """Check that this machine can bind ranks.

    Raises:
        LayoutError: naming what is missing.
    """
    if mode == "none":
        return
    if not torch.cuda.is_available():
        raise LayoutError(
            f'processes.numa = "{mode}" binds ranks beside their GPU, and this machine has none: set "none"'
        )
    if shutil.which("numactl") is None:
        raise LayoutError(
            f'processes.numa = "{mode}" needs the program numactl: install it (Debian: apt install numactl), or set '
            '"none"'
        )


def check_writable(folder: Path) -> None:
    """Create the folder of the checkpoints, and check that a file can be created in it.

    Raises:
        CheckpointError: naming the folder and the reason.
    """
    try:
        create_file_in(folder)
    except OSError as error:
        raise CheckpointError(f"checkpoint.folder = {folder} cannot be written: {error.strerror or error}") from error


def create_file_in(folder: Path) -> None:
    """Create a folder, and a file in it that is removed again: raises OSError if what is kept there would be lost."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
