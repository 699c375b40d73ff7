"""What a checkpoint says of itself: one JSON file, written last, without which a folder is no checkpoint.

``{"digest": blake3 of the content as compact JSON with sorted keys, "content": {...}}``. The content names every file
with its size and digest, every tensor with where its pieces lie, and everything that is not a tensor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atoll.datacenter.checkpoint.state import Values
from atoll.datacenter.errors import CheckpointError

NAME = "manifest.json"
MAX_BYTES = 1 << 30


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileRecord(_Record):
    """A file: its size and its blake3."""

    size_bytes: Annotated[int, Field(ge=0)]
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Piece(_Record):
    """A piece of a tensor: where it begins, its shape, and where it lies."""

    offset: list[int]
    shape: list[int]
    file: Annotated[str, Field(pattern=r"^[a-z0-9-]+\.safetensors$")]
    key: str


class TensorRecord(_Record):
    """A whole tensor; ``dtype`` as in ``torch.float32``, without ``torch``."""

    dtype: str
    shape: list[int]
    pieces: list[Piece]


class Manifest(_Record):
    """Content of a manifest.

    Attributes:
        format: of checkpoints.
        step: optimiser steps made.
        job: name of the job.
        layout: of the mesh that wrote it, e.g. ``dp_shard 2 x tp 2``.
        world: number of ranks that wrote it.
        torch: its version.
        values: see ``TrainingState.values``.
        files: by name.
        tensors: by name.
    """

    format: Literal["atoll.silo.checkpoint/1"] = "atoll.silo.checkpoint/1"
    step: Annotated[int, Field(ge=0)]
    job: str
    layout: str
    world: Annotated[int, Field(ge=1)]
    torch: str
    values: Values
    files: dict[str, FileRecord]
    tensors: dict[str, TensorRecord]

    def encoded(self) -> bytes:
        """The file's bytes."""
        content = self.model_dump(mode="json")
        return _compact({"digest": _digest(content), "content": content})


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint.

    Raises:
        CheckpointError: naming the file, if it is missing, cannot be read, or its digest is not that of its content.
    """
    path = folder / NAME
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{path}: larger than {MAX_BYTES} bytes: not a manifest")
        found = json.loads(path.read_bytes())
        content, digest = found["content"], found["digest"]
        if _digest(content) != digest:
            raise CheckpointError(f"{path}: its digest is not that of its content: damaged")
        return Manifest.model_validate(content)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        first = error.errors()[0]["loc"] if isinstance(error, ValidationError) else error
        raise CheckpointError(f"{path}: not a manifest of a checkpoint ({first}): damaged") from error


def _compact(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()


def _digest(content: Mapping[str, object]) -> str:
    return blake3(_compact(content)).hexdigest()
