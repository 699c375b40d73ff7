"""GPUs of worker processes: each worker sees only its own devices and uses at most its share of memory.

PyTorch is imported only when GPUs are requested.
"""

from __future__ import annotations

import importlib
import os
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atoll.simulation.errors import SetupError
from atoll.simulation.workers import Workers, workers_to_a_gpu
from atoll.text.figures import counted
from atoll.text.installing import install_hint

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class GpuShare:
    """One worker's GPU and its share of it.

    Attributes:
        devices: the GPUs that it sees, as ``CUDA_VISIBLE_DEVICES`` names them.
        share: share of its GPU's memory that PyTorch may use; 1: all.
    """

    devices: str
    share: float

    def take(self) -> None:
        """Restrict this process to its devices and memory share, before its first participant is created.

        Raises:
            SetupError: as ``limit_memory``.
        """
        os.environ[VISIBLE] = self.devices
        limit_memory(self.share)


def limit_memory(share: float) -> None:
    """Limit this process's share of GPU memory in PyTorch; does nothing for whole GPUs.

    Raises:
        SetupError: if PyTorch is not installed, or this process cannot use its GPU.
    """
    if share >= 1:
        return
    torch = _torch(share)
    try:
        torch.cuda.set_per_process_memory_fraction(float(share))
    except Exception as error:
        raise SetupError(
            f"gpus = {share:g}: a worker cannot use the GPU {os.environ.get(VISIBLE, 'of its machine')!r}: {error}; "
            "use CUDA only in participants, never before run"
        ) from error


def gpu_shares(workers: Workers) -> list[GpuShare]:
    """Each worker's GPU and share; empty if no GPUs are requested.

    Raises:
        SetupError: if PyTorch is not installed, sees too few GPUs, or has initialised CUDA in this process.
    """
    if not workers.gpus:
        return []
    torch = _torch(workers.gpus)
    if torch.cuda.is_initialized():
        raise SetupError(
            f"gpus = {workers.gpus:g}: this process uses CUDA already, and a process forked from it cannot: use "
            "CUDA only in participants, never before run"
        )
    devices = _visible_devices(torch)
    if not devices:
        seen = f" ({VISIBLE} = {os.environ[VISIBLE]!r})" if VISIBLE in os.environ else ""
        raise SetupError(
            f"gpus = {workers.gpus:g}: PyTorch {torch.__version__} sees no GPU on this machine{seen}; check "
            "`nvidia-smi`, install a build of PyTorch with CUDA, or leave gpus out"
        )
    return dealt(workers, devices)


def dealt(workers: Workers, devices: Sequence[str]) -> list[GpuShare]:
    """Assign workers to devices: shares in turn, so that loads differ by at most one; whole GPUs in order.

    Raises:
        SetupError: if the devices have too few shares.
    """
    whole = int(workers.gpus)
    room = len(devices) // whole if whole > 1 else len(devices) * workers_to_a_gpu(workers.gpus)
    if workers.count > room:
        raise SetupError(
            f"workers = {workers.count} with gpus = {workers.gpus:g} each do not fit on "
            f"{counted(len(devices), 'visible GPU')} ({', '.join(devices)}), which have room for {room}: "
            "lower workers or gpus"
        )
    if whole > 1:
        parts = [devices[place * whole : (place + 1) * whole] for place in range(workers.count)]
        return [GpuShare(",".join(part), 1.0) for part in parts]
    return [GpuShare(devices[place % len(devices)], workers.gpus) for place in range(workers.count)]


def _visible_devices(torch: Any) -> Sequence[str]:
    """The GPUs of this machine that this process may use, by number or name, as ``CUDA_VISIBLE_DEVICES`` has them."""
    count = _counted_aside(torch)
    named = os.environ.get(VISIBLE)
    names = [str(number) for number in range(count)] if named is None else [one.strip() for one in named.split(",")]
    return names[:count]  # CUDA ignores names after the first unknown one


def _counted_aside(torch: Any) -> int:
    """Count the GPUs in a separate process: the query may initialise CUDA, which this one's forks could not use."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads hold nothing that the count uses
        pid = os.fork()
    if not pid:
        try:
            os.write(writer, b"%d" % torch.cuda.device_count())
        except BaseException:  # noqa: BLE001 - a fork must never return into its parent's code
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    return int(said or 0)


def _torch(share: float) -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise SetupError(f"gpus = {share:g} needs PyTorch: {install_hint('server,torch')}") from error
