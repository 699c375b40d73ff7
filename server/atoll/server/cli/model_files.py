"""Transfers models between safetensors files and the server, with one chunk in memory at a time."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atoll.formats import safetensors
from atoll.server.cli.client import ControlClient, ModelRef, transfer_timeout_s
from atoll.server.cli.errors import BadInputError, CommandError, UnreachableError
from atoll.server.cli.output import size, transfer
from atoll.server.jobs import JobSpec
from atoll.wire.digest import DEFAULT_CHUNK_BYTES, BlobManifest
from atoll.wire.errors import SafetensorsError, WireError
from atoll.wire.layout import Layout

MAX_FAILURES = 4
"""Number of consecutive broken streams without a chunk after which a download is given up."""


@dataclass(frozen=True)
class ModelFile:
    """A safetensors file in a memory map: its layout, and the tensors' bytes."""

    layout: Layout
    blob: memoryview

    def chunks(self) -> Iterator[bytes]:
        """The bytes in chunks."""
        for start in range(0, self.blob.nbytes, DEFAULT_CHUNK_BYTES):
            yield bytes(self.blob[start : start + DEFAULT_CHUNK_BYTES])


def initial_file(job: Path, spec: JobSpec) -> Path:
    """The file with the initial weights of the job file ``job``.

    Raises:
        BadInputError: if the job names none.
    """
    if spec.model is None:
        raise BadInputError(f"{job}: [model] is missing", 'add `initial = "FILE.safetensors"`, the initial weights')
    return job.parent / spec.model.initial


@contextmanager
def open_model(path: Path) -> Iterator[ModelFile]:
    """Map a safetensors file.

    Raises:
        BadInputError: if it cannot be read, or is not a whole safetensors file.
    """
    try:
        layout, start = safetensors.read_header(path)
    except SafetensorsError as error:
        raise BadInputError(str(error), "give a .safetensors file with the initial weights") from error
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as whole,
        whole[start:] as blob,
    ):
        yield ModelFile(layout, blob)


def upload(client: ControlClient, model: ModelFile) -> str:
    """Send a model; returns the name of its blob."""
    total = model.blob.nbytes
    with transfer("hashing the model", total) as hashed:
        manifest = BlobManifest.of_chunks(hashed.through(model.chunks()))
    with transfer("sending the model", total) as sent:
        return client.upload_model(manifest, sent.through(model.chunks()))


def download(client: ControlClient, ref: ModelRef, path: Path) -> None:
    """Fetch a model into a safetensors file, verified, whole or not at all; continues after a lost connection.

    Raises:
        CommandError: if the server cannot be reached for long, or what it sends is not the model.
        BadInputError: if the file cannot be written.
    """
    try:
        manifest = client.manifest(ref.blob)
        if manifest.name != ref.blob or manifest.size_bytes != ref.layout.size_bytes:
            raise CommandError(f"the server sent a manifest that is not of blob {ref.blob[:16]}")
        with transfer(f"fetching {size(manifest.size_bytes)}", manifest.size_bytes) as shown:
            safetensors.write(path, ref.layout, shown.through(_verified(client, manifest)), {"format": "pt"})
    except WireError as error:
        raise CommandError(f"the model that came is damaged: {error}", "fetch it again") from error
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror or error}") from error


def _verified(client: ControlClient, manifest: BlobManifest) -> Iterator[bytes]:
    index = failures = 0
    while index < manifest.chunk_count:
        before = index
        try:
            for found, payload in client.download(manifest.name, index, transfer_timeout_s(manifest.size_bytes)):
                if found != index:
                    raise CommandError(f"the server sent chunk {found} of the model, expected {index}")
                manifest.verify_chunk(index, payload)
                yield bytes(payload)
                index += 1
        except UnreachableError:
            if failures + 1 >= MAX_FAILURES:
                raise
        failures = 0 if index > before else failures + 1
        if failures >= MAX_FAILURES:
            raise CommandError(f"the server ended the download after chunk {index} of {manifest.chunk_count}")
