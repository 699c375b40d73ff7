"""The process group of a job and the device of this rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from atoll.datacenter.errors import DatacenterError


@dataclass(frozen=True, slots=True)
class World:
    """This process among the job's.

    Attributes:
        rank: from 0.
        size: number of ranks.
        local_rank: among those of this node.
        device: where this rank computes.
    """

    rank: int
    size: int
    local_rank: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks for the job."""
        return self.rank == 0


@contextmanager
def join_world(timeout_s: float) -> Iterator[World]:
    """The world that torchrun, Slurm or Kubernetes has described in the environment; left at the end.

    NCCL where there is a GPU for each rank of the node, else gloo. Without such an environment: a world of one.

    Args:
        timeout_s: collectives that take longer fail.

    Raises:
        DatacenterError: if the node has GPUs, but fewer than ranks.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = _device(local_rank)
    if dist.is_initialized():
        yield World(dist.get_rank(), dist.get_world_size(), local_rank, device)
        return
    _describe_world_of_one()
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    try:
        yield World(dist.get_rank(), dist.get_world_size(), local_rank, device)
    finally:
        dist.destroy_process_group()


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise DatacenterError(
            f"local rank {local_rank} has no GPU of its own: this node has {torch.cuda.device_count()}; start as many "
            "processes, or hide the GPUs with CUDA_VISIBLE_DEVICES= to train on the CPU"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _describe_world_of_one() -> None:
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
