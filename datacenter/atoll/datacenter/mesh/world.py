"""The process group of a job and the device of this rank."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

from atoll.datacenter.errors import DatacenterError

WATCHDOG_GRACE_S = 60
"""Seconds after a collective's limit until NCCL's watchdog aborts the process: before, ``elastic.watch`` ends it and
names the rank that is missing."""
ATTEMPT_VARIABLE = "ATOLL_SILO_ATTEMPT"
"""A name for each start of the ranks, the same on every node."""


@dataclass(frozen=True, slots=True)
class World:
    """This process among the processes of the job.

    Attributes:
        rank: number of this process, from 0.
        size: number of ranks.
        local_rank: number of this process on its node, from 0.
        device: where this rank computes.
    """

    rank: int
    size: int
    local_rank: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this rank reports for the job."""
        return self.rank == 0


def ranks_per_node(world: World) -> int:
    """Return the number of ranks of this node."""
    return min(world.size, int(os.environ.get("LOCAL_WORLD_SIZE", world.size)))


@contextmanager
def join_world(timeout_s: float, *, on_host: bool = False) -> Iterator[World]:
    """Join the world that torchrun, Slurm or Kubernetes describes in the environment; leave it at the end.

    Uses NCCL if there is a GPU for each rank of the node, else gloo. Without such an environment: a world of one rank.

    Args:
        timeout_s: limit of a collective; a longer one fails.
        on_host: whether ranks with GPUs also sum tensors in host memory, as ``data_parallel.cpu_offload`` needs: every
            process group then connects by gloo too, which takes longer in large worlds.

    Raises:
        DatacenterError: if the node has GPUs, but fewer than ranks.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = _device(local_rank)
    if dist.is_initialized():
        yield World(dist.get_rank(), dist.get_world_size(), local_rank, device)
        return
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(
        backend_of(device.type, on_host=on_host),
        timeout=timeout + _grace(device.type),
        device_id=device if device.type == "cuda" else None,
        **_rendezvous(timeout),
    )
    try:
        yield World(dist.get_rank(), dist.get_world_size(), local_rank, device)
    finally:
        dist.destroy_process_group()


def host_group(timeout_s: float) -> dist.ProcessGroup:
    """Return another group of all ranks, for tensors in host memory, with any backend of the world; collective."""
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s)))


def pair_group(first: int, second: int, device_type: str, timeout_s: float) -> dist.ProcessGroup:
    """Return a group of two ranks, for tensors on their devices; every rank of the world calls this, in the same order.

    Ranks outside the group get a placeholder that takes no messages.
    """
    limit = timedelta(seconds=timeout_s) + _grace(device_type)
    backend = backend_of(device_type, on_host=False)
    return cast(dist.ProcessGroup, dist.new_group([first, second], backend=backend, timeout=limit))


def _grace(device_type: str) -> timedelta:
    return timedelta(seconds=WATCHDOG_GRACE_S if device_type == "cuda" else 0)


def backend_of(device_type: str, *, on_host: bool) -> str:
    """Return the backend of the world's process group, by the devices whose tensors its collectives support."""
    if device_type == "cpu":
        return "gloo"
    return "cuda:nccl,cpu:gloo" if on_host else "nccl"


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


def _rendezvous(timeout: timedelta) -> dict[str, Any]:
    """Return the store, rank and size for ``init_process_group``; empty where it reads them from the environment.

    Without ``RANK`` in the environment the world is this process. The environment is not changed: a process started
    later must not take itself for that rank.
    """
    if "RANK" not in os.environ:
        return {"store": HashStore(), "rank": 0, "world_size": 1}
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return _agents_store(os.environ, timeout)
    return {}


def _agents_store(environment: Mapping[str, str], timeout: timedelta) -> dict[str, Any]:
    """Use the store of torchrun's agent, which outlives the ranks, under keys of this attempt only.

    torch 2.13 gives the ranks of the next attempt the same store with the same keys: gloo then finds addresses of ranks
    that are gone. The name of the attempt comes from our launcher, or is torchrun's count of restarts.
    """
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    store = TCPStore(address, port, size, is_master=False, timeout=timeout)
    attempt = environment.get(ATTEMPT_VARIABLE) or environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return {"store": PrefixStore(f"attempt/{attempt}", store), "rank": rank, "world_size": size}
