"""Transfer models to and from the server, as arrays or safetensors files."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from atoll.formats import safetensors
from atoll.formats.arrays import NamedArrays
from atoll.operator.errors import BadInputError, OperatorError, UnreachableError, translated
from atoll.wire.chunks import parse_download
from atoll.wire.digest import DEFAULT_CHUNK_BYTES, BlobManifest
from atoll.wire.errors import SafetensorsError, WireError
from atoll.wire.layout import Layout
from atoll.wire.messages import manifest_from_proto, manifest_to_proto
from atoll.wire.v1 import control_pb2, transfer_pb2
from atoll.wire.views import tensor_views

if TYPE_CHECKING:
    from atoll.operator.calls import Calls

MAX_FAILURES = 4
"""Number of consecutive broken streams without a chunk after which a download fails."""
_DOWNLOAD = "/atoll.wire.v1.TransferService/Download"

Steps = Callable[[str, int, int], object]
"""Called with the step (``hash``, ``send`` or ``fetch``), the bytes done so far, and the total bytes."""
Which = int | Literal["latest", "best", "averaged"]
"""A run's model: by number of rounds (0: initial), newest, best by the job's metric, or the released ones' mean."""
Weights = Mapping[str, npt.ArrayLike] | Path | str
"""Initial weights: arrays by name (``atoll.formats.arrays`` has the element types), or a safetensors file."""


def silent(step: str, done: int, total: int) -> None:
    """Ignores progress."""
    del step, done, total


@dataclass(frozen=True)
class ModelRef:
    """A released model: its layout, its blob, and the round after which it was released (0: initial)."""

    layout: Layout
    blob: str
    round: int


class Model(Mapping[str, npt.NDArray[np.generic]]):
    """A released model: read-only arrays by name; bfloat16 appears as its 16 bits (uint16).

    Attributes:
        round: rounds behind it; 0 for the initial model.
        blob: the digest of its bytes: models with the same digest are identical.
        layout: names, shapes and element types.
    """

    def __init__(self, ref: ModelRef, content: bytes) -> None:
        self.round, self.blob, self.layout = ref.round, ref.blob, ref.layout
        self._content = content
        self._arrays = tensor_views(ref.layout, content)

    def __getitem__(self, name: str) -> npt.NDArray[np.generic]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in list(self.items())[:3])
        more = f", and {len(self) - 3} more" if len(self) > 3 else ""
        return f"<Model after round {self.round}: {shapes}{more}>"

    def save(self, path: Path | str) -> None:
        """Write a safetensors file atomically.

        Raises:
            BadInputError: if it cannot be written.
        """
        write(Path(path), self.layout, (self._content,))


@dataclass(frozen=True)
class Content:
    """A model's layout and its bytes."""

    layout: Layout
    blob: memoryview

    def chunks(self) -> Iterator[bytes]:
        """The bytes in chunks."""
        for start in range(0, self.blob.nbytes, DEFAULT_CHUNK_BYTES):
            yield bytes(self.blob[start : start + DEFAULT_CHUNK_BYTES])


@contextmanager
def opened(weights: Weights) -> Iterator[Content]:
    """The content of weights; a file stays on disk, in a memory map.

    Raises:
        BadInputError: for a file that is not an intact safetensors file, or arrays of unsupported types.
    """
    if isinstance(weights, Mapping):
        yield _content_of(weights)
        return
    path = Path(weights)
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
        yield Content(layout, blob)


def _content_of(weights: Mapping[str, npt.ArrayLike]) -> Content:
    try:
        found = NamedArrays.of(weights)
    except WireError as error:
        raise BadInputError(str(error), "correct the initial weights") from error
    return Content(found.layout, memoryview(b"".join(found.pieces())))


def upload(calls: Calls, content: Content, steps: Steps) -> str:
    """Send a model; returns the name of its blob. Holds a few chunks at a time."""
    total = content.blob.nbytes
    manifest = BlobManifest.of_chunks(_counted(content.chunks(), "hash", total, steps))

    def requests() -> Iterator[control_pb2.UploadModelRequest]:
        head = manifest_to_proto(manifest)
        for index, chunk in enumerate(_counted(content.chunks(), "send", total, steps)):
            yield control_pb2.UploadModelRequest(manifest=head if index == 0 else None, index=index, payload=chunk)

    return calls.call(calls.control.UploadModel, requests(), calls.timeouts.transfer_s(total)).blob


def fetched(calls: Calls, ref: ModelRef, steps: Steps) -> Iterator[bytes]:
    """The verified chunks of a released model; resumes after a lost connection.

    Raises:
        OperatorError: if the server is unreachable for too long, or its data is not the model.
    """
    try:
        answer = calls.call(calls.transfer.GetManifest, transfer_pb2.GetManifestRequest(blob=ref.blob))
        manifest = manifest_from_proto(answer.manifest)
        if manifest.name != ref.blob or manifest.size_bytes != ref.layout.size_bytes:
            raise OperatorError(f"the server sent a manifest that is not of blob {ref.blob[:16]}")
        yield from _counted(_verified(calls, manifest), "fetch", manifest.size_bytes, steps)
    except WireError as error:
        raise OperatorError(f"the downloaded model is damaged: {error}", "fetch it again") from error


def write(path: Path, layout: Layout, chunks: Iterable[bytes]) -> None:
    """Write a safetensors file atomically.

    Raises:
        BadInputError: if the file cannot be written.
    """
    try:
        safetensors.write(path, layout, chunks, {"format": "pt"})
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror or error}") from error


def _verified(calls: Calls, manifest: BlobManifest) -> Iterator[bytes]:
    index = failures = 0
    while index < manifest.chunk_count:
        before = index
        try:
            for found, payload in _download(calls, manifest, index):
                if found != index:
                    raise OperatorError(f"the server sent chunk {found} of the model, expected {index}")
                manifest.verify_chunk(index, payload)
                yield bytes(payload)
                index += 1
        except UnreachableError:
            if failures + 1 >= MAX_FAILURES:
                raise
        failures = 0 if index > before else failures + 1
        if failures >= MAX_FAILURES:
            raise OperatorError(f"the server ended the download after chunk {index} of {manifest.chunk_count}")


def _download(calls: Calls, manifest: BlobManifest, first_chunk: int) -> Iterator[tuple[int, memoryview]]:
    """(index, payload) of the chunks from ``first_chunk`` on, not verified; waits for an unreachable server."""
    method: Callable[..., Any] = calls.channel.unary_stream(
        _DOWNLOAD, request_serializer=transfer_pb2.DownloadRequest.SerializeToString
    )
    request = transfer_pb2.DownloadRequest(blob=manifest.name, first_chunk=first_chunk)
    stream = calls.stream(method, request, calls.timeouts.transfer_s(manifest.size_bytes), wait=True)
    with translated(calls.address):
        try:
            for message in stream:
                yield parse_download(message)
        finally:
            stream.cancel()


def _counted(chunks: Iterable[bytes], step: str, total: int, steps: Steps) -> Iterator[bytes]:
    done = 0
    for chunk in chunks:
        yield chunk
        done += len(chunk)
        steps(step, done, total)
