"""The manifest of a checkpoint: one JSON file, written last. A folder without it is not a checkpoint.

``{"digest": BLAKE3 of the content as compact JSON with sorted keys, "content": {...}}``. The content lists every file
with size and digest, every tensor with the location of its pieces, and everything that is not a tensor.
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
    """Size and BLAKE3 of a file."""

    size_bytes: Annotated[int, Field(ge=0)]
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class PieceRecord(_Record):
    """A piece of a tensor: its offset and shape, and the file and key that hold it."""

    offset: list[int]
    shape: list[int]
    file: Annotated[str, Field(pattern=r"^[a-z0-9-]+\.safetensors$")]
    key: str


class TensorRecord(_Record):
    """A whole tensor; ``dtype`` as in ``torch.float32``, without ``torch.``."""

    dtype: str
    shape: list[int]
    pieces: list[PieceRecord]


class Manifest(_Record):
    """Content of a manifest.

    Attributes:
        format: version of the checkpoint format.
        step: completed optimiser steps.
        job: name of the job.
        layout: layout of the mesh that wrote it, e.g. ``dp_shard 2 x tp 2``.
        world: number of ranks that wrote it.
        torch: version of PyTorch.
        values: see ``TrainingState.values``.
        files: files by name.
        tensors: tensors by name.
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
        """Return the bytes of the file."""
        content = self.model_dump(mode="json")
        return _compact({"digest": _digest(content), "content": content})


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        CheckpointError: if the file is missing, unreadable, or its digest does not match its content; names the file.
    """
    path = folder / NAME
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{path}: more than {MAX_BYTES} bytes: not a manifest")
        found = json.loads(path.read_bytes())
        content, digest = found["content"], found["digest"]
        if _digest(content) != digest:
            raise CheckpointError(f"{path}: its digest does not match its content: damaged")
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
