"""Hogwild (Niu et al. 2011): processes of one machine change the same parameters without locks.

The parameters are in a memory-backed file that every process maps: there are no copies and no waits. If two processes
add to an element at the same time, one addition may be lost; and parameters may change while a gradient is computed
from them. This does little harm if gradients are sparse or steps are small. No two runs are equal.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.train.asynchrony.vector import lay_over, read, size_of

_MEMORY = Path("/dev/shm")  # noqa: S108  # a folder in memory; the file's name is unique
_PATH_BYTES = 4096


@contextmanager
def shared_parameters(parameters: Sequence[nn.Parameter]) -> Iterator[Tensor]:
    """Put the parameters of all ranks into the same memory, filled with rank 0's. Collective.

    The file has been unlinked when this returns, so no file remains, however the processes end.

    Gives:
        float32 vector: all parameters.

    Raises:
        TrainingError: on every rank, if a rank is on another machine, or parameters are on a GPU.
    """
    if any(parameter.device.type != "cpu" for parameter in parameters):
        raise TrainingError("Hogwild shares memory of the CPU: hide the GPUs with CUDA_VISIBLE_DEVICES=")
    folder = str(_MEMORY) if _MEMORY.is_dir() else None
    with tempfile.NamedTemporaryFile(prefix="atoll-hogwild-", dir=folder) as file:
        if dist.get_rank() == 0:
            file.truncate(size_of(parameters) * 4)
        path = _path_of_first(file.name)
        if not _everywhere(path.exists()):
            raise TrainingError("Hogwild shares memory: start all ranks on one machine, or use a parameter server")
        vector = torch.from_file(str(path), shared=True, size=size_of(parameters), dtype=torch.float32)
        if dist.get_rank() == 0:
            read(parameters, vector)
        dist.barrier()  # all ranks have mapped it, and it is filled
    lay_over(vector, parameters)
    yield vector
    dist.barrier()  # no rank changes it any more


def _path_of_first(name: str) -> Path:
    """Return rank 0's path on every rank."""
    message = torch.zeros(_PATH_BYTES, dtype=torch.uint8)
    encoded = name.encode()
    message[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
    dist.broadcast(message, src=0)
    return Path(bytes(message.tolist()).rstrip(b"\0").decode())


def _everywhere(here: bool) -> bool:  # whether it is true on every rank
    seen = torch.tensor([int(here)])
    dist.all_reduce(seen, op=dist.ReduceOp.MIN)
    return bool(seen.item())
