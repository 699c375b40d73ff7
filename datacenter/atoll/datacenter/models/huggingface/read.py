"""Read a checkpoint into a model that is already cut: each rank reads only the slices that it holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.mesh.shards import local_shard

if TYPE_CHECKING:
    from atoll.datacenter.job.model import ModelSection
    from atoll.datacenter.models.spec import Foreign, ModelSpec

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_INDEX_BYTES = 64 << 20


@dataclass(frozen=True)
class _Wanted:
    """A piece of one of our parameters and the tensor that it comes from.

    Attributes:
        into: destination.
        source: name of the tensor.
        shape: shape of the whole tensor.
        index: the part of the tensor to read.
    """

    into: Tensor
    source: str
    shape: tuple[int, ...]
    index: tuple[slice, ...]


def start_from(module: nn.Module, spec: ModelSpec, model: ModelSection) -> set[str]:
    """Fill a model from ``model.weights``, if the job sets it and its spec has no weights; see ``load_weights``.

    Returns:
        The names of the parameters that were filled.

    Raises:
        LayoutError: see ``load_weights``; also if the model has no Hugging Face form.
    """
    if model.weights is None or spec.weights is not None:
        return set()
    if spec.foreign is None:
        raise LayoutError(f'model.weights: a model of kind "{model.kind}" has no Hugging Face checkpoints')
    return load_weights(module, spec.foreign, Path(model.weights))


@torch.no_grad()
def load_weights(module: nn.Module, foreign: Foreign, folder: Path) -> set[str]:
    """Fill the parameters that the checkpoint has, in place, from this rank's slices of its tensors.

    Memory: one slice in addition to the parameters. Bytes read from disk: what this rank holds.

    Args:
        module: model on a real device, its parameters plain or ``DTensor``.
        foreign: names of a parameter in the checkpoint; parameters without a name (adapters) are left as they are.
        folder: folder with ``model.safetensors``, or with shards and their index.

    Returns:
        The names of the parameters that the checkpoint has.

    Raises:
        LayoutError: if the checkpoint is missing, damaged or of another model; names file, tensor and both shapes.
    """
    found = {name: parameter for name, parameter in module.named_parameters() if foreign(name)}
    wanted = [piece for name, parameter in found.items() for piece in _pieces(parameter, foreign(name))]
    files = _files(folder, [piece.source for piece in wanted])
    with ExitStack() as opened:
        readers: dict[Path, Any] = {}
        for piece in wanted:
            path = files[piece.source]
            if path not in readers:
                readers[path] = opened.enter_context(_open(path))
            piece.into.copy_(_read(readers[path], piece, path))
    return set(found)


def read_tensor(folder: Path, sources: Sequence[str], shape: Sequence[int]) -> Tensor:
    """Return one of our parameters whole, float32; raises as ``load_weights``.

    Args:
        folder: folder of the checkpoint.
        sources: the parameter's names in the checkpoint.
        shape: its shape.
    """
    parameter = nn.Parameter(torch.empty(*shape))
    load_weights(nn.ParameterList([parameter]), lambda _: tuple(sources), folder)
    return parameter.detach()


def _pieces(parameter: nn.Parameter, sources: Sequence[str]) -> Iterator[_Wanted]:
    local, offsets = local_shard(parameter)
    if not local.numel():
        return
    index = tuple(slice(start, start + size) for start, size in zip(offsets, local.shape, strict=True))
    shape = tuple(parameter.shape)
    if len(sources) == 1:
        yield _Wanted(local, sources[0], shape, index)
        return
    for place in range(index[0].start, index[0].stop):
        yield _Wanted(local[place - index[0].start], sources[place], shape[1:], index[1:])


def _files(folder: Path, sources: Sequence[str]) -> dict[str, Path]:
    """Return the file of each tensor."""
    index = folder / INDEX
    if not index.is_file():
        single = folder / SINGLE
        if not single.is_file():
            raise LayoutError(f"model.weights: {folder} has neither {SINGLE} nor {INDEX}")
        return dict.fromkeys(sources, single)
    shards = _weight_map(index)
    if absent := sorted(set(sources) - set(shards)):
        raise LayoutError(f"{index} lacks {absent[0]} (and {len(absent) - 1} more): it belongs to another model")
    return {source: folder / shards[source] for source in sources}


def _weight_map(index: Path) -> dict[str, str]:
    if index.stat().st_size > MAX_INDEX_BYTES:
        raise LayoutError(f"{index} has {index.stat().st_size} bytes: an index has at most {MAX_INDEX_BYTES}")
    try:
        found = json.loads(index.read_bytes())["weight_map"]
        shards = {str(name): str(file) for name, file in found.items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise LayoutError(f'{index} is damaged: no "weight_map" ({error!r})') from error
    for file in shards.values():
        if Path(file).name != file:
            raise LayoutError(f"{index} names {file!r}: files must be in the same folder")
    return shards


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise LayoutError(f"{path} cannot be read: {error}") from error


def _read(reader: Any, piece: _Wanted, path: Path) -> Tensor:
    try:
        part = reader.get_slice(piece.source)
    except SafetensorError as error:
        raise LayoutError(f"{path} has no tensor {piece.source}: it belongs to another model") from error
    if (shape := tuple(part.get_shape())) != piece.shape:
        raise LayoutError(f"{path}: {piece.source} has shape {list(shape)}, this model's has {list(piece.shape)}")
    read: Tensor = part[piece.index]
    return read
