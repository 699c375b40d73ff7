"""Check that a checkpoint belongs to the job's model: compare the names, shapes and dtypes in it."""

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
    from atoll.datacenter.checkpoint.state import Stateful
    from atoll.datacenter.models.spec import ModelSpec

_SHOWN = 8
"""Differences that an error lists."""


def check_model(folder: Path, spec: ModelSpec, position: Stateful | None = None) -> int | None:
    """Compare the newest checkpoint with the job's model and data, before any process starts.

    Args:
        folder: folder of the checkpoints.
        spec: spec of the model, which is built on the meta device: no memory is used.
        position: position of the job's data, set from the checkpoint; None: the data is not compared.

    Returns:
        Step of the newest checkpoint with a readable manifest; None if there is none, which is handled at the start.

    Raises:
        CheckpointError: if the newest is of another model.
        DataError: if the newest is of other data.
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
    """List what the job needs from a checkpoint that is missing there or differs."""
    return [
        problem
        for name, tensor in wanted.items()
        if (problem := _difference(name, tensor, manifest.tensors.get(name))) is not None
    ]


def unclaimed(names: Iterable[str]) -> list[str]:
    """List what a checkpoint contains that the job does not use."""
    return [f"{name} is in the checkpoint only" for name in sorted(names) if not name.startswith(RANK)]


def refuse(place: Path, manifest: Manifest, problems: list[str]) -> None:
    """Raise if there are problems.

    Raises:
        CheckpointError: listing the first of them.
    """
    if not problems:
        return
    more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    raise CheckpointError(
        f'{place} is a checkpoint of another model or optimiser (job "{manifest.job}"):\n  '
        + "\n  ".join(problems[:_SHOWN])
        + f"{more}\ngive checkpoint.folder another name, or use the [model] and [optimiser] that it was made with"
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
