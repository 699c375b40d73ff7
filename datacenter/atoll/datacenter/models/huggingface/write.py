"""Write a checkpoint in the format of ``transformers``, gathering one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job.huggingface.config import CONFIG, config_of
from atoll.datacenter.models.huggingface.read import INDEX, SINGLE
from atoll.datacenter.models.whole import WholeModel

if TYPE_CHECKING:
    from atoll.datacenter.job.model import ModelSection
    from atoll.datacenter.models.spec import Foreign, ModelSpec

SHARD_BYTES = 2 << 30
"""Maximum size of a file, unless one tensor is larger."""
GENERATION = "generation_config.json"
_METADATA = {"format": "pt"}


@dataclass(frozen=True)
class _Tensor:
    """A tensor to write: its name in the checkpoint, its parameter, and the index of the parameter's first dim."""

    name: str
    ours: str
    place: int | None
    bytes: int


def save_model(parts: Sequence[nn.Module], spec: ModelSpec, model: ModelSection, folder: Path) -> None:
    """Write a model that is divided over ranks, adapters merged; collective, rank 0 writes.

    Memory: one whole parameter on each rank, and one file's tensors (``SHARD_BYTES``) on rank 0.

    Args:
        parts: this rank's model, or its pipeline stages.
        spec: spec of the whole model.
        model: ``[model]``.
        folder: created if it does not exist; files of the same names are replaced.

    Raises:
        LayoutError: if the model has no Hugging Face form.
    """
    if spec.foreign is None:
        raise LayoutError(f'a model of kind "{model.kind}" has no Hugging Face form')
    whole = WholeModel.of(parts, spec).merged(model.lora)
    shapes = {name: shape for name, shape in whole.shapes.items() if name not in whole.buffers}
    save_pretrained(folder, model, spec.foreign, shapes, whole.tensor, writes=whole.writes)


def save_pretrained(
    folder: Path,
    model: ModelSection,
    foreign: Foreign,
    shapes: Mapping[str, Sequence[int]],
    whole: Callable[[str], Tensor],
    *,
    dtype: torch.dtype = torch.float32,
    writes: bool = True,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write ``config.json`` and tensors. Each tensor is fetched when its file is written, in the order of ``shapes``.

    Args:
        folder: created if it does not exist.
        model: ``[model]``.
        foreign: names of a parameter in the checkpoint.
        shapes: shapes of our parameters by name.
        whole: returns a parameter; called once for each, in the same order on every rank.
        dtype: dtype of the tensors in the files.
        writes: whether this process writes files, or only takes part in gathering.
        shard_bytes: maximum size of a file, unless one tensor is larger.

    Raises:
        LayoutError: if a parameter cannot be represented in such a checkpoint.
    """
    files = _files(_tensors(shapes, foreign, dtype), shard_bytes)
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
    kept: tuple[str, Tensor] | None = None
    for file, tensors in files.items():
        ready: dict[str, Tensor] = {}
        for tensor in tensors:
            if kept is None or kept[0] != tensor.ours:
                kept = (tensor.ours, whole(tensor.ours))
            if writes:
                value = kept[1] if tensor.place is None else kept[1][tensor.place]
                ready[tensor.name] = value.to(device="cpu", dtype=dtype, copy=True).contiguous()
        if writes:
            save_file(ready, folder / file, _METADATA)
    if writes:
        _describe(folder, config_of(model, str(dtype).removeprefix("torch.")), files)
        _carry_over(model, folder)


def _tensors(shapes: Mapping[str, Sequence[int]], foreign: Foreign, dtype: torch.dtype) -> list[_Tensor]:
    found = []
    for ours, shape in shapes.items():
        names = foreign(ours)
        if not names:
            raise LayoutError(f"{ours} has no place in a Hugging Face checkpoint")
        size = prod(shape) * dtype.itemsize // len(names)
        places = [None] if len(names) == 1 else range(len(names))
        found += [_Tensor(name, ours, place, size) for name, place in zip(names, places, strict=True)]
    return found


def _files(tensors: Sequence[_Tensor], shard_bytes: int) -> dict[str, list[_Tensor]]:
    """Assign tensors to files, in order, filling each file as far as possible."""
    groups: list[list[_Tensor]] = []
    filled = 0
    for tensor in tensors:
        if not groups or filled + tensor.bytes > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += tensor.bytes
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    return {
        f"model-{number:05d}-of-{len(groups):05d}.safetensors": group for number, group in enumerate(groups, start=1)
    }


def _carry_over(model: ModelSection, folder: Path) -> None:
    """Copy the generation settings of the checkpoint that the model started from, if its folder has them."""
    base = None if model.weights is None else Path(model.weights) / GENERATION
    if base is not None and base.is_file():
        (folder / GENERATION).write_bytes(base.read_bytes())


def _describe(folder: Path, config: Mapping[str, Any], files: Mapping[str, Sequence[_Tensor]]) -> None:
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    index = folder / INDEX
    if len(files) == 1:
        index.unlink(missing_ok=True)
        return
    names = {tensor.name: file for file, tensors in files.items() for tensor in tensors}
    size = sum(tensor.bytes for tensors in files.values() for tensor in tensors)
    index.write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": names}, indent=2) + "\n")
