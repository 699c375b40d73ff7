"""Vectors of layouts, blobs and updates, and of the names and digests that they have."""

from __future__ import annotations

from typing import Any

import numpy as np

from atoll.wire.chunks import ChunkHeader, ElementRange, header_of, update_digest
from atoll.wire.digest import BlobManifest
from atoll.wire.encoding import Encoding, encode
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.messages import layout_to_proto

MODEL = Layout(
    (
        TensorSpec("weight", (3, 2), Dtype.FLOAT32),
        TensorSpec("größe", (), Dtype.FLOAT64),
        TensorSpec("half", (4,), Dtype.FLOAT16),
        TensorSpec("brain", (1, 1, 2), Dtype.BFLOAT16),
    )
)
Part = tuple[ElementRange, Encoding, bytes]


def layouts() -> dict[str, Any]:
    """Layouts with their protobuf messages and digests."""
    one = Layout((TensorSpec("w", (8,), Dtype.FLOAT32),))
    return {
        "about": "BLAKE3 of the canonical text of a layout (docs/protocol.md, Digests)",
        "cases": [
            {
                "tensors": [
                    {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype.value} for spec in layout.tensors
                ],
                "elements": layout.size,
                "bytes": layout.size_bytes,
                "message": layout_to_proto(layout).SerializeToString().hex(),
                "digest": layout.digest,
            }
            for layout in (one, MODEL)
        ],
    }


def counting(size: int) -> bytes:
    """``size`` bytes that count from 0 to 250, repeatedly."""
    return (np.arange(size) % 251).astype(np.uint8).tobytes()


def blobs() -> dict[str, Any]:
    """Manifests and names of blobs."""
    sizes = ((0, 1024), (1, 1024), (1024, 1024), (2500, 1024), (2500, 2048))
    cases = []
    for size, chunk_bytes in sizes:
        manifest = BlobManifest.of_buffer(counting(size), chunk_bytes)
        digests = [digest.hex() for digest in manifest.chunk_digests]
        cases.append({"bytes": size, "chunk_bytes": chunk_bytes, "chunk_digests": digests, "name": manifest.name})
    return {"about": "Names of blobs; byte i of each blob is i modulo 251", "cases": cases}


def updates() -> dict[str, Any]:
    """Digests of updates."""
    first = _part(ElementRange.run(0, 4), Encoding.FLOAT32, 0.0)
    second = _part(ElementRange.run(4, 4), Encoding.FLOAT32, 4.0)
    even = _part(ElementRange(0, 1, 2, 4), Encoding.FLOAT32, 8.0)
    odd = _part(ElementRange(1, 1, 2, 4), Encoding.INT8_BLOCK, 12.0)
    return {
        "about": "Digests of updates, over their chunks in order of (offset, block, stride, count)",
        "cases": [
            _update("one chunk", ElementRange.run(0, 4).size, first),
            _update("two chunks", 8, first, second),
            _update("two chunks that came in the other order: the digest is the same", 8, second, first),
            _update("strided chunks in two encodings: elements 0, 2, 4, 6 and 1, 3, 5, 7", 8, even, odd),
        ],
    }


def _part(span: ElementRange, encoding: Encoding, start: float) -> Part:
    values = np.arange(start, start + span.size, dtype=np.float32)
    return span, encoding, encode(values, encoding).tobytes()


def _update(about: str, elements: int, *parts: Part) -> dict[str, Any]:
    headers = [header_of(*part) for part in parts]
    chunks = [chunk(header, payload) for header, (_, _, payload) in zip(headers, parts, strict=True)]
    return {"about": about, "elements": elements, "chunks": chunks, "digest": update_digest(headers)}


def chunk(header: ChunkHeader, payload: bytes) -> dict[str, Any]:
    """A chunk with the digest of its payload."""
    span = header.range
    return {
        "offset": span.offset,
        "block": span.block,
        "stride": span.stride,
        "count": span.count,
        "encoding": int(header.encoding),
        "payload": payload.hex(),
        "digest": header.digest.hex(),
    }
