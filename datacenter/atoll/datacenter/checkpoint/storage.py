"""Storage of PyTorch's distributed checkpoint: safetensors and one JSON file, without pickle.

``torch.distributed.checkpoint`` plans which rank writes which piece (replicas once) and which pieces a rank needs in
another layout. Its default storage pickles the plan; its Hugging Face storage only supports whole tensors, each under
one name.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from atoll.datacenter.checkpoint.files import Entry, Written, write_tensors
from atoll.datacenter.checkpoint.folder import begin
from atoll.datacenter.checkpoint.manifest import FileRecord, Manifest, PieceRecord, TensorRecord

Publish = Callable[[dict[str, FileRecord], dict[str, TensorRecord]], None]
"""Turns synced files and tensors into a checkpoint; called on one rank once all ranks have written."""


class SafeWriter(StorageWriter):
    """Writes each rank's pieces to a separate file.

    Args:
        folder: the same on every rank; the coordinator creates it before any rank writes.
        rank: number of this rank.
        publish: called on the coordinator at the end.
    """

    def __init__(self, folder: Path, rank: int, publish: Publish) -> None:
        self._folder, self._rank, self._publish = folder, rank, publish

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a writer writes one checkpoint."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Create the folder; an error here reaches every rank with the plan."""
        if is_coordinator:
            begin(self._folder)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans unchanged."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file; none if it has no pieces."""
        results: list[WriteResult] = []
        if plan.items:
            name = f"rank-{self._rank:05d}.safetensors"
            written = write_tensors(self._folder / name, [_entry(item, planner) for item in plan.items])
            results = [WriteResult(item.index, _size_bytes(item), (name, written)) for item in plan.items]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Publish every file and tensor."""
        files: dict[str, FileRecord] = {}
        places: dict[MetadataIndex, str] = {}
        for result in (result for of_rank in results for result in of_rank):
            name, written = cast(tuple[str, Written], result.storage_data)
            files[name] = FileRecord(size_bytes=written.size_bytes, digest=written.digest)
            places[result.index] = name
        self._publish(files, _records(metadata, places))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False: writers are only created by this package."""
        return False


class SafeReader(StorageReader):
    """Reads what a rank needs, and nothing else, from a checkpoint whose files have been verified.

    Args:
        folder: folder of the checkpoint.
        manifest: manifest of the checkpoint.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._manifest = folder, manifest

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a reader reads one checkpoint."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the manifest's metadata."""
        tensors: dict[str, TensorStorageMetadata] = {}
        places: dict[MetadataIndex, PieceRecord] = {}
        for name, record in self._manifest.tensors.items():
            pieces = [ChunkStorageMetadata(torch.Size(one.offset), torch.Size(one.shape)) for one in record.pieces]
            tensors[name] = TensorStorageMetadata(
                TensorProperties(dtype=dtype_of(record)), torch.Size(record.shape), pieces
            )
            places |= {MetadataIndex(name, torch.Size(one.offset)): one for one in record.pieces}
        return Metadata(state_dict_metadata=dict(tensors), storage_data=places)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Remember the location of the pieces."""
        self._places: dict[MetadataIndex, PieceRecord] = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy slices from mapped files into the waiting tensors."""
        by_file: dict[str, list[tuple[PieceRecord, ReadItem]]] = defaultdict(list)
        for item in plan.items:
            piece = self._places[item.storage_index]
            by_file[piece.file].append((piece, item))
        for name, items in by_file.items():
            with safe_open(self._folder / name, framework="pt") as file:
                for piece, item in items:
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(_slice(file, piece.key, item))
                    planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False: readers are only created by this package."""
        return False


def dtype_of(record: TensorRecord) -> torch.dtype:
    """Return PyTorch's dtype.

    Raises:
        TypeError: if PyTorch has no dtype of this name.
    """
    dtype = getattr(torch, record.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{record.dtype} is not a dtype of PyTorch {torch.__version__}")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, e.g. ``float32``."""
    return str(dtype).removeprefix("torch.")


def _entry(item: WriteItem, planner: SavePlanner) -> Entry:
    data = _data(item)
    return Entry(
        _key(item.index.fqn, data.chunk.offsets),
        data.properties.dtype,
        tuple(data.chunk.sizes),
        lambda: cast(Tensor, planner.resolve_data(item)),
    )


def _data(item: WriteItem) -> TensorWriteData:
    if item.tensor_data is None:
        raise TypeError(f"{item.index.fqn} is not a tensor")
    return item.tensor_data


def _key(name: str, offset: torch.Size) -> str:
    """Return a key with the offset: a rank may hold several pieces of one tensor."""
    return f"{name}@{','.join(map(str, offset))}"


def _size_bytes(item: WriteItem) -> int:
    data = _data(item)
    return data.chunk.sizes.numel() * data.properties.dtype.itemsize


def _records(metadata: Metadata, places: dict[MetadataIndex, str]) -> dict[str, TensorRecord]:
    found = {}
    for name, tensor in cast(dict[str, TensorStorageMetadata], metadata.state_dict_metadata).items():
        pieces = [
            PieceRecord(
                offset=list(chunk.offsets),
                shape=list(chunk.sizes),
                file=places[MetadataIndex(name, chunk.offsets)],
                key=_key(name, chunk.offsets),
            )
            for chunk in tensor.chunks
        ]
        found[name] = TensorRecord(dtype=dtype_name(tensor.properties.dtype), shape=list(tensor.size), pieces=pieces)
    return found


def _slice(file: Any, key: str, item: ReadItem) -> Tensor:
    """Return the requested slice of a piece; ``file`` is ``safe_open``'s, which has no types."""
    if not item.lengths:
        return cast(Tensor, file.get_tensor(key))
    ranges = zip(item.storage_offsets, item.lengths, strict=True)
    return cast(Tensor, file.get_slice(key)[tuple(slice(offset, offset + length) for offset, length in ranges)])
