"""Finds the newest checkpoint that is whole, and loads what each rank needs of it. Collective."""

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
    from atoll.datacenter.checkpoint.writer import Place

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a job went on from.

    Attributes:
        step: steps that were made.
        place: the checkpoint's folder.
        layout: of the mesh that wrote it.
        world: ranks that wrote it.
        damaged: newer checkpoints that were set aside.
    """

    step: int
    place: Path
    layout: str
    world: int
    damaged: tuple[Path, ...]


def check_shared(place: Place) -> None:
    """See that every rank has the same folder before it.

    Raises:
        CheckpointError: naming the hosts that do not, or why it cannot be written.
    """
    first = place.rank == 0
    probe, problem = place.folder / f".probe-{uuid.uuid4().hex}", None
    if first:
        try:
            place.folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
        except OSError as error:
            problem = f"checkpoint.folder = {place.folder} cannot be written: {error.strerror or error}"
    told = [probe.name, problem]
    dist.broadcast_object_list(told, src=0, group=place.group)
    if told[1] is not None:
        raise CheckpointError(str(told[1]))
    blind = [host for host in _gathered(place, _host_without(place.folder / str(told[0]))) if host is not None]
    if first:
        probe.unlink()
    if blind:
        raise CheckpointError(
            f"checkpoint.folder = {place.folder} is not the same folder on {', '.join(sorted(set(blind)))} as on "
            "rank 0: put it on a disk that every node sees"
        )


def resume(place: Place, state: TrainingState) -> Resumed | None:
    """See ``Checkpoints.resume``."""
    told: list[Any] = [steps_in(place.folder)]
    dist.broadcast_object_list(told, src=0, group=place.group)
    steps: list[int] = told[0]
    damaged: list[Path] = []
    problems: list[str] = []
    for step in reversed(steps):
        found = step_folder(place.folder, step)
        manifest, wrong = _verified(place, found)
        if manifest is not None:
            _load(place, found, manifest, state)
            return Resumed(step, found, manifest.layout, manifest.world, tuple(damaged))
        problems += wrong
        damaged.append(_set_aside(place, found, wrong))
    if steps:
        raise CheckpointError(
            f"none of the {len(steps)} checkpoints in {place.folder} is whole:\n  "
            + "\n  ".join(problems)
            + "\nto begin anew, move the folder away or give checkpoint.folder another name"
        )
    return None


def _verified(place: Place, found: Path) -> tuple[Manifest | None, list[str]]:
    """Read the manifest and check digests, each rank those of some files; None and why, if it is damaged."""
    manifest, mine = None, []
    try:
        manifest = read_manifest(found)
        files = sorted(manifest.files.items())
        mine = damage(found, files[place.rank :: dist.get_world_size(place.group)])
    except CheckpointError as error:
        mine = [str(error)]
    wrong = sorted({problem for of_rank in _gathered(place, mine) for problem in of_rank})
    return (None, wrong) if wrong else (manifest, [])


def _set_aside(place: Place, found: Path, problems: list[str]) -> Path:
    aside = found
    if place.rank == 0:
        aside = set_aside(found)
        log.error(
            "a damaged checkpoint is set aside as %s, the one before is taken:\n  %s", aside, "\n  ".join(problems)
        )
    dist.barrier(group=place.group)
    return aside


def _load(place: Place, found: Path, manifest: Manifest, state: TrainingState) -> None:
    has_states = any(name.startswith(OPTIMISER) for name in manifest.tensors)
    tensors = state.model_tensors() | (state.optimiser_tensors(make=True) if has_states else {})
    _compare(place, found, manifest, tensors)
    own = _own(place, manifest) if _takes_over(place, manifest) else {}
    load(
        tensors | own,
        storage_reader=SafeReader(found, manifest),
        planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
        process_group=place.group,
    )
    state.load_rank_tensors(place.rank, own)
    state.load_values(manifest.values)


def _compare(place: Place, found: Path, manifest: Manifest, tensors: dict[str, Tensor]) -> None:
    """Refuse a checkpoint of another model, with the same words on every rank."""
    names = sorted(manifest.tensors)
    claimed = torch.tensor([name in tensors for name in names], dtype=torch.uint8)
    dist.all_reduce(claimed, dist.ReduceOp.MAX, group=place.group)
    problems = sorted({one for of_rank in _gathered(place, differences(tensors, manifest)) for one in of_rank})
    nobodys = (name for name, seen in zip(names, claimed.tolist(), strict=True) if not seen)
    refuse(found, manifest, problems + unclaimed(nobodys))


def _takes_over(place: Place, manifest: Manifest) -> bool:
    """Whether what each rank had for itself means the same now."""
    same = manifest.layout == place.layout and manifest.world == dist.get_world_size(place.group)
    if not same and place.rank == 0:
        extras = {name.split(".")[2] for name in manifest.tensors if name.startswith(RANK)}
        log.warning(
            "the checkpoint was written by %d ranks (%s), this job has %d (%s): each rank's own %s begin anew",
            manifest.world,
            manifest.layout,
            dist.get_world_size(place.group),
            place.layout,
            ", ".join(sorted(extras)) or "states",
        )
    return same


def _own(place: Place, manifest: Manifest) -> dict[str, Tensor]:
    """Room for what this rank had for itself."""
    return {
        name: torch.empty(record.shape, dtype=dtype_of(record))
        for name, record in manifest.tensors.items()
        if name.startswith(f"{RANK}{place.rank}.")
    }


def _gathered(place: Place, value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size(place.group)
    dist.all_gather_object(found, value, group=place.group)
    return found


def _host_without(probe: Path) -> str | None:
    return None if probe.exists() else socket.gethostname()
