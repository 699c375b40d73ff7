"""Files of tensors: the safetensors format, written as a stream, with the digest known at the end.

``safetensors.torch.save_file`` converts every tensor to bytes before it writes the first, which takes a second copy of
everything that a rank holds. Here only one tensor is copied at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The format's names of dtypes."""
_ALIGNMENT = 8
"""Bytes; the header is padded so that tensors begin at a multiple of this."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to write.

    Attributes:
        key: name in the file.
        dtype: dtype of its elements.
        shape: shape of this piece.
        read: returns the tensor, on any device, when it is written.
    """

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor in the file."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Written:
    """A file that has been synced.

    Attributes:
        size_bytes: size of the whole file.
        digest: BLAKE3 of its bytes, hexadecimal.
    """

    size_bytes: int
    digest: str


def write_tensors(path: Path, entries: Sequence[Entry]) -> Written:
    """Write a safetensors file and sync it.

    Memory: one tensor, copied from its device.

    Raises:
        OSError: if the file exists or cannot be written.
        TypeError: if the format has no name for a dtype.
    """
    ordered = sorted(entries, key=lambda entry: (-entry.dtype.itemsize, entry.key))  # aligns each to its width
    hasher = blake3()
    with path.open("xb", buffering=0) as file:
        for piece in _pieces(ordered):
            _write_all(file.fileno(), piece)
            hasher.update(piece)
        os.fsync(file.fileno())
        return Written(file.tell(), hasher.hexdigest())


def _pieces(entries: Sequence[Entry]) -> Iterator[memoryview]:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in entries:
        begin, end = end, end + entry.size_bytes
        header[entry.key] = {"dtype": _name(entry), "shape": list(entry.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for entry in entries:
        tensor = entry.read().detach().to("cpu").contiguous()
        if tensor.dtype != entry.dtype or tuple(tensor.shape) != entry.shape:
            raise TypeError(
                f"{entry.key} is {tensor.dtype} {list(tensor.shape)}, not {entry.dtype} {list(entry.shape)}"
            )
        yield tensor.reshape(-1).view(torch.uint8).numpy().data


def _name(entry: Entry) -> str:
    if entry.dtype not in _NAMES:
        raise TypeError(f"{entry.key} is {entry.dtype}, which safetensors has no name for")
    return _NAMES[entry.dtype]


def _write_all(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def write_durable(path: Path, content: bytes) -> None:
    """Write a small new file and sync it.

    Raises:
        OSError: if the file exists or cannot be written.
    """
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def digest_of(path: Path) -> str:
    """Return the BLAKE3 of a file, hexadecimal; the file is mapped, and all cores are used.

    Raises:
        OSError: if the file cannot be read.
    """
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
