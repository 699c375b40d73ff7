"""Reading and writing safetensors files, in which models are submitted and exported.

The format: a little-endian u64 with the length of a JSON header, the header, then the tensors' bytes one after another
without holes (https://huggingface.co/docs/safetensors, "Format"). Nothing in it can be executed. Only the header is
held in memory; the tensors stream, so the size of a file is not limited.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.wire.errors import SafetensorsError, WireError
from atoll.wire.layout import Dtype, Layout, TensorSpec

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_HEADER_BYTES = 100_000_000
"""The reference implementation's limit."""
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_DTYPES = {"F32": Dtype.FLOAT32, "F64": Dtype.FLOAT64, "F16": Dtype.FLOAT16, "BF16": Dtype.BFLOAT16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def read_header(path: Path) -> tuple[Layout, int]:
    """The layout of a file's tensors, in the order of their bytes, and the offset of the first byte.

    The bytes from there to the end of the file are the blob of the layout.

    Raises:
        SafetensorsError: for a file that is truncated, has holes, overlaps or trailing bytes, or has tensors of
            unsupported types (integers). Names file, tensor and value.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header = _header_bytes(file.read(_LENGTH_BYTES), size, path)
            text = file.read(header)
    except OSError as error:
        raise SafetensorsError(f"cannot read {path}: {error}") from None
    start = _LENGTH_BYTES + header
    return _layout(_parse(text, path), size - start, path), start


def write(path: Path, layout: Layout, chunks: Iterable[Buffer], metadata: Mapping[str, str] | None = None) -> None:
    """Write a file from the bytes of a layout, given as consecutive chunks of any sizes; atomic and durable.

    Raises:
        SafetensorsError: if the total length of the chunks is not that of the layout.
    """
    header = _header(layout, metadata or {})
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            written = sum(file.write(memoryview(chunk).cast("B")) for chunk in chunks)
            _check_length(written, layout, path)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _check_length(written: int, layout: Layout, path: Path) -> None:
    if written != layout.size_bytes:
        raise SafetensorsError(f"{path}: {written} bytes for a layout of {layout.size_bytes} bytes")


def _header(layout: Layout, metadata: Mapping[str, str]) -> bytes:
    """The JSON header, padded with spaces so that the tensors begin at a multiple of 8."""
    entries: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    for span in layout.spans:
        if span.spec.name == _METADATA:
            raise SafetensorsError(f"a tensor cannot be named {_METADATA!r} in a safetensors file")
        offsets = [span.byte_start, span.byte_stop]
        entries[span.spec.name] = {
            "dtype": _NAMES[span.spec.dtype],
            "shape": list(span.spec.shape),
            "data_offsets": offsets,
        }
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-len(text) % 8)


def _header_bytes(length: bytes, size: int, path: Path) -> int:
    if len(length) < _LENGTH_BYTES:
        raise SafetensorsError(f"{path} is not a safetensors file: it has {size} bytes")
    (header,) = struct.unpack("<Q", length)
    if header > min(MAX_HEADER_BYTES, size - _LENGTH_BYTES):
        raise SafetensorsError(
            f"{path} is not a safetensors file, or was cut short: a header of {header} bytes in a file of {size}"
        )
    return int(header)


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    try:
        entries = json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise SafetensorsError(f"{path}: the header is not JSON: {error}") from None
    if not isinstance(entries, dict):
        raise SafetensorsError(f"{path}: the header is a {type(entries).__name__}; an object is needed")
    entries.pop(_METADATA, None)
    return entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _layout(entries: dict[str, Any], data_bytes: int, path: Path) -> Layout:
    found = sorted(_tensor(name, entry, path) for name, entry in entries.items())
    position = 0
    for start, stop, _, spec in found:
        if start != position or stop - start != spec.size * spec.dtype.itemsize:
            raise SafetensorsError(
                f"{path}: tensor {spec.name!r} has bytes {start} to {stop}; its shape {list(spec.shape)} and type "
                f"{spec.dtype.value} need {position} to {position + spec.size * spec.dtype.itemsize}"
            )
        position = stop
    if position != data_bytes:
        raise SafetensorsError(f"{path}: {data_bytes} bytes of tensors, the header describes {position}")
    try:
        return Layout(tuple(spec for _, _, _, spec in found))
    except WireError as error:
        raise SafetensorsError(f"{path}: {error}") from None


def _tensor(name: str, entry: Any, path: Path) -> tuple[int, int, str, TensorSpec]:
    """(first byte, last byte + 1, name, spec) of one header entry."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise SafetensorsError(f"{path}: tensor {name!r}: needs dtype, shape and data_offsets, nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        known = ", ".join(_DTYPES)
        raise SafetensorsError(
            f"{path}: tensor {name!r} has type {dtype!r}; types that can be sent are {known}: leave it out"
        )
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise SafetensorsError(f"{path}: tensor {name!r}: shape {shape!r}, data_offsets {offsets!r}")
    try:
        return offsets[0], offsets[1], name, TensorSpec(name, tuple(shape), _DTYPES[dtype])
    except WireError as error:
        raise SafetensorsError(f"{path}: {error}") from None


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
