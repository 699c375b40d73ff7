"""Initial models: all values must be finite; frozen tensors are moved behind the others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from atoll.server.aggregation import inspect
from atoll.server.errors import InvalidRequestError
from atoll.server.stores import BlobStore
from atoll.wire.encoding import Encoding
from atoll.wire.layout import Dtype, Layout

BLOCK_BYTES = 16 << 20
"""Bytes read at a time: a multiple of every element's size."""


def check_finite(blobs: BlobStore, name: str, layout: Layout) -> None:
    """Read a model once without copying it. Blocks: call it from a worker thread.

    Raises:
        InvalidRequestError: names the first tensor with a value that is not finite.
        BlobDamagedError: if the blob's content does not match its name.
    """
    with blobs.open(name) as blob:
        for start, stop, dtype in _runs(layout):
            for at in range(start, stop, BLOCK_BYTES):
                end = min(at + BLOCK_BYTES, stop)
                if not _finite(blob.read(at, end), dtype):
                    raise _not_finite(layout, at, blob.read(at, end))


def in_order(blobs: BlobStore, name: str, layout: Layout, wanted: Layout) -> str:
    """Write a model again with the same tensors in another order; the new blob's name. Blocks.

    Holds a block at a time.
    """
    places = {span.spec.name: span for span in layout.spans}
    with blobs.open(name) as blob, blobs.create(expected_bytes=wanted.size_bytes) as writer:
        for tensor in wanted.tensors:
            span = places[tensor.name]
            for at in range(span.byte_start, span.byte_stop, BLOCK_BYTES):
                writer.write(blob.read(at, min(at + BLOCK_BYTES, span.byte_stop)))
        return writer.commit().name


def _runs(layout: Layout) -> Iterator[tuple[int, int, Dtype]]:
    """First byte, last byte + 1 and type of tensors of the same type that lie side by side."""
    for dtype, group in groupby(layout.spans, key=lambda span: span.spec.dtype):
        spans = list(group)
        yield spans[0].byte_start, spans[-1].byte_stop, dtype


def _finite(values: memoryview, dtype: Dtype) -> bool:
    return inspect(values, Encoding[dtype.name]).finite


def _not_finite(layout: Layout, start: int, block: memoryview) -> InvalidRequestError:
    for span in layout.spans:
        first, last = max(span.byte_start, start), min(span.byte_stop, start + block.nbytes)
        if first < last and not _finite(block[first - start : last - start], span.spec.dtype):
            return InvalidRequestError(
                "job.not_finite",
                f"the initial model's tensor {span.spec.name!r} has a value that is not finite",
                "begin with finite weights",
            )
    raise AssertionError("a block with such a value consists of tensors, so one of them has it")
