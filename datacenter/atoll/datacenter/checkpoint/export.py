"""Convert a checkpoint of any layout to a Hugging Face folder, in one process, without the mesh that wrote it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from torch import Tensor

from atoll.datacenter.checkpoint.folder import damage, step_folder, steps_in
from atoll.datacenter.checkpoint.manifest import Manifest, TensorRecord, read_manifest
from atoll.datacenter.checkpoint.state import MODEL
from atoll.datacenter.checkpoint.storage import dtype_of
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.models.huggingface.write import save_pretrained
from atoll.datacenter.models.kinds import spec_of
from atoll.datacenter.models.lora import merged

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.job.model import ModelSection
    from atoll.datacenter.models.spec import Foreign


def export(job: SiloJob, checkpoints: Path, out: Path, step: int | None = None) -> int:
    """Write the model of a checkpoint, adapters merged.

    Memory: one file's tensors (``write.SHARD_BYTES``) and one whole parameter.

    Args:
        job: the job that made the checkpoint.
        checkpoints: folder of the checkpoints.
        out: created if it does not exist; files of the same names are replaced.
        step: step of the checkpoint; the newest if None.

    Returns:
        The step of the checkpoint written.

    Raises:
        LayoutError: if there is no such checkpoint, it is of another model, or the model has no Hugging Face form.
        CheckpointError: if it is damaged.
    """
    foreign, shapes = foreign_form(job.model)
    place = _place(checkpoints, step)
    manifest = read_manifest(place)
    if problems := damage(place, manifest.files.items()):
        raise LayoutError(*problems)
    _compare(shapes, manifest, place)

    def read(name: str) -> Tensor:
        return _read(place, manifest.tensors[f"{MODEL}{name}"])

    save_merged(out, job.model, foreign, shapes, read)
    return manifest.step


def foreign_form(model: ModelSection) -> tuple[Foreign, dict[str, Sequence[int]]]:
    """Return the names of a model in a Hugging Face checkpoint, and the shapes of its parameters.

    Raises:
        LayoutError: if the model has no Hugging Face form.
    """
    spec = spec_of(model)
    if spec.foreign is None:
        raise LayoutError(f'a model of kind "{model.kind}" has no Hugging Face form')
    with torch.device("meta"):
        module = spec.build()
    return spec.foreign, {name: tuple(value.shape) for name, value in module.named_parameters()}


def save_merged(
    out: Path, model: ModelSection, foreign: Foreign, shapes: dict[str, Sequence[int]], whole: Callable[[str], Tensor]
) -> None:
    """Write a model for Hugging Face's libraries, adapters merged."""
    if model.lora is not None:
        shapes, whole = merged(shapes, whole, model.lora)
    save_pretrained(out, model, foreign, shapes, whole)


def _place(checkpoints: Path, step: int | None) -> Path:
    there = steps_in(checkpoints)
    if not there:
        raise LayoutError(f"{checkpoints} has no checkpoints")
    if step is not None and step not in there:
        raise LayoutError(f"{checkpoints} has no checkpoint of step {step}; there are {', '.join(map(str, there))}")
    return step_folder(checkpoints, there[-1] if step is None else step)


def _compare(shapes: dict[str, Sequence[int]], manifest: Manifest, place: Path) -> None:
    for name, shape in shapes.items():
        record = manifest.tensors.get(f"{MODEL}{name}")
        if record is None or record.shape != list(shape):
            found = "is missing" if record is None else f"has shape {record.shape}"
            raise LayoutError(f"{place}: {name} {found}, this job's has {list(shape)}: it belongs to another model")


def _read(place: Path, record: TensorRecord) -> Tensor:
    whole = torch.empty(record.shape, dtype=dtype_of(record))
    for piece in record.pieces:
        index = tuple(slice(start, start + size) for start, size in zip(piece.offset, piece.shape, strict=True))
        with safe_open(place / piece.file, framework="pt") as file:
            whole[index] = file.get_tensor(piece.key)
    return whole
