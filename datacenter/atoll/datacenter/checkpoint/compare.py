"""Whether a checkpoint is of the job's model: names, shapes and number formats of everything in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atoll.datacenter.checkpoint.folder import step_folder, steps_in
from atoll.datacenter.checkpoint.manifest import Manifest, TensorRecord, read_manifest
from atoll.datacenter.checkpoint.state import MODEL, RANK
from atoll.datacenter.checkpoint.storage import dtype_name
from atoll.datacenter.errors import CheckpointError

if TYPE_CHECKING:
    from atoll.datacenter.checkpoint.state import Position
    from atoll.datacenter.models.spec import ModelSpec

_SHOWN = 8
"""Differences that an error lists."""


def check_model(folder: Path, spec: ModelSpec, position: Position | None = None) -> int | None:
    """Compare the newest checkpoint with the job's model and data, before any process starts.

    Args:
        folder: of the checkpoints.
        spec: of the model, which is made on the meta device: no memory is taken.
        position: of the job's data, to which it is led; None: the data is not compared.

    Returns:
        The newest checkpoint's step; None if there is none whose manifest can be read: it is dealt with at the start.

    Raises:
        CheckpointError: if the newest is of another model.
        DataError: if it is of other data.
    """
    for step in reversed(steps_in(folder)):
        try:
            manifest = read_manifest(step_folder(folder, step))
        except CheckpointError:
            continue
        with torch.device("meta"):
            module = spec.build()
        wanted = {MODEL + name: value for name, value in module.state_dict().items()}
        kept = {name for name in manifest.tensors if name.startswith(MODEL)}
        refuse(step_folder(folder, step), manifest, differences(wanted, manifest) + unclaimed(kept - wanted.keys()))
        if position is not None:
            position.load(manifest.values["data"])
        return step
    return None


def differences(wanted: Mapping[str, Tensor], manifest: Manifest) -> list[str]:
    """What is wanted of a checkpoint and is not there, or is something else."""
    return [
        problem
        for name, tensor in wanted.items()
        if (problem := _difference(name, tensor, manifest.tensors.get(name))) is not None
    ]


def unclaimed(names: Iterable[str]) -> list[str]:
    """What is in a checkpoint and nobody wants."""
    return [f"{name} is in the checkpoint only" for name in sorted(names) if not name.startswith(RANK)]


def refuse(place: Path, manifest: Manifest, problems: list[str]) -> None:
    """Raise if there are problems.

    Raises:
        CheckpointError: naming the first of them.
    """
    if not problems:
        return
    more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    raise CheckpointError(
        f'{place} is a checkpoint of another model or optimiser (job "{manifest.job}"):\n  '
        + "\n  ".join(problems[:_SHOWN])
        + f"{more}\ngive checkpoint.folder another name, or [model] and [optimiser] those that it was made with"
    )


def _difference(name: str, tensor: Tensor, record: TensorRecord | None) -> str | None:
    if record is None:
        return f"{name} is not in the checkpoint"
    shape, dtype = list(tensor.shape), dtype_name(tensor.dtype)
    if record.shape != shape:
        return f"{name} has shape {record.shape} in the checkpoint, {shape} in the job"
    if record.dtype != dtype:
        return f"{name} is {record.dtype} in the checkpoint, {dtype} in the job"
    return None
