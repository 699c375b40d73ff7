"""Find the newest intact checkpoint, and load what each rank needs from it. Collective."""

from __future__ import annotations

import logging
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load

from atoll.datacenter.checkpoint.compare import differences, refuse, unclaimed
from atoll.datacenter.checkpoint.folder import damage, set_aside, step_folder, steps_in
from atoll.datacenter.checkpoint.manifest import Manifest, read_manifest
from atoll.datacenter.checkpoint.state import OPTIMISER, RANK
from atoll.datacenter.checkpoint.storage import SafeReader, dtype_of
from atoll.datacenter.errors import CheckpointError

if TYPE_CHECKING:
    from atoll.datacenter.checkpoint.state import TrainingState
    from atoll.datacenter.checkpoint.writer import Destination

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resumed:
    """The checkpoint that a job continues from.

    Attributes:
        step: number of completed steps.
        folder: folder of the checkpoint.
        layout: layout of the mesh that wrote it.
        world: number of ranks that wrote it.
        damaged: newer checkpoints that were set aside.
    """

    step: int
    folder: Path
    layout: str
    world: int
    damaged: tuple[Path, ...]


def check_shared(destination: Destination) -> None:
    """Check that every rank sees the same folder.

    Raises:
        CheckpointError: naming the hosts that do not, or the reason why it cannot be written.
    """
    first = destination.rank == 0
    probe, problem = destination.folder / f".probe-{uuid.uuid4().hex}", None
    if first:
        try:
            destination.folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
        except OSError as error:
            problem = f"checkpoint.folder = {destination.folder} cannot be written: {error.strerror or error}"
    shared = [probe.name, problem]
    dist.broadcast_object_list(shared, src=0, group=destination.group)
    if shared[1] is not None:
        raise CheckpointError(str(shared[1]))
    blind = [
        host for host in _gathered(destination, _host_without(destination.folder / str(shared[0]))) if host is not None
    ]
    if first:
        probe.unlink()
    if blind:
        raise CheckpointError(
            f"checkpoint.folder = {destination.folder} is not the same folder on {', '.join(sorted(set(blind)))} as on "
            "rank 0: put it on a disk that is mounted on every node"
        )


def resume(destination: Destination, state: TrainingState) -> Resumed | None:
    """See ``Checkpoints.resume``."""
    shared: list[Any] = [steps_in(destination.folder)]
    dist.broadcast_object_list(shared, src=0, group=destination.group)
    steps: list[int] = shared[0]
    damaged: list[Path] = []
    problems: list[str] = []
    for step in reversed(steps):
        found = step_folder(destination.folder, step)
        manifest, wrong = _verified(destination, found)
        if manifest is not None:
            _load(destination, found, manifest, state)
            return Resumed(step, found, manifest.layout, manifest.world, tuple(damaged))
        problems += wrong
        damaged.append(_set_aside(destination, found, wrong))
    if steps:
        raise CheckpointError(
            f"none of the {len(steps)} checkpoints in {destination.folder} is intact:\n  "
            + "\n  ".join(problems)
            + "\nto start a new job, move the folder away or give checkpoint.folder another name"
        )
    return None


def _verified(destination: Destination, found: Path) -> tuple[Manifest | None, list[str]]:
    """Read the manifest and verify digests, divided over the ranks; return None and the reasons if damaged."""
    manifest, mine = None, []
    try:
        manifest = read_manifest(found)
        files = sorted(manifest.files.items())
        mine = damage(found, files[destination.rank :: dist.get_world_size(destination.group)])
    except CheckpointError as error:
        mine = [str(error)]
    wrong = sorted({problem for of_rank in _gathered(destination, mine) for problem in of_rank})
    return (None, wrong) if wrong else (manifest, [])


def _set_aside(destination: Destination, found: Path, problems: list[str]) -> Path:
    aside = found
    if destination.rank == 0:
        aside = set_aside(found)
        log.error(
            "a damaged checkpoint was set aside as %s, the previous one is used:\n  %s", aside, "\n  ".join(problems)
        )
    dist.barrier(group=destination.group)
    return aside


def _load(destination: Destination, found: Path, manifest: Manifest, state: TrainingState) -> None:
    has_states = any(name.startswith(OPTIMISER) for name in manifest.tensors)
    tensors = state.model_tensors() | (state.optimiser_tensors(make=True) if has_states else {})
    _compare(destination, found, manifest, tensors)
    own = _own(destination, manifest) if _takes_over(destination, manifest) else {}
    load(
        tensors | own,
        storage_reader=SafeReader(found, manifest),
        planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
        process_group=destination.group,
    )
    state.load_rank_tensors(destination.rank, own)
    state.load_values(manifest.values)


def _compare(destination: Destination, found: Path, manifest: Manifest, tensors: dict[str, Tensor]) -> None:
    """Refuse a checkpoint of another model, with the same message on every rank."""
    names = sorted(manifest.tensors)
    claimed = torch.tensor([name in tensors for name in names], dtype=torch.uint8)
    dist.all_reduce(claimed, dist.ReduceOp.MAX, group=destination.group)
    problems = sorted({one for of_rank in _gathered(destination, differences(tensors, manifest)) for one in of_rank})
    nobodys = (name for name, seen in zip(names, claimed.tolist(), strict=True) if not seen)
    refuse(found, manifest, problems + unclaimed(nobodys))


def _takes_over(destination: Destination, manifest: Manifest) -> bool:
    """Return whether this job's ranks can take over the state that each rank saved for itself."""
    same = manifest.layout == destination.layout and manifest.world == dist.get_world_size(destination.group)
    if not same and destination.rank == 0:
        extras = {name.split(".")[2] for name in manifest.tensors if name.startswith(RANK)}
        log.warning(
            "the checkpoint was written by %d ranks (%s), this job has %d (%s): these start over on each rank: %s",
            manifest.world,
            manifest.layout,
            dist.get_world_size(destination.group),
            destination.layout,
            ", ".join(sorted(extras)) or "states",
        )
    return same


def _own(destination: Destination, manifest: Manifest) -> dict[str, Tensor]:
    """Allocate memory for the state that this rank saved for itself."""
    return {
        name: torch.empty(record.shape, dtype=dtype_of(record))
        for name, record in manifest.tensors.items()
        if name.startswith(f"{RANK}{destination.rank}.")
    }


def _gathered(destination: Destination, value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size(destination.group)
    dist.all_gather_object(found, value, group=destination.group)
    return found


def _host_without(probe: Path) -> str | None:
    return None if probe.exists() else socket.gethostname()
