"""Pieces of a small layout, made without ranks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from atoll.datacenter.federation.pieces import Piece
from atoll.datacenter.federation.ranges import ranges_of_box
from atoll.wire.chunks import ElementRange
from atoll.wire.digest import MIN_CHUNK_BYTES, BlobManifest
from atoll.wire.layout import Dtype, Layout, TensorSpec

LAYOUT = Layout((TensorSpec("w", (40, 32), Dtype.FLOAT32), TensorSpec("b", (100,), Dtype.FLOAT32)))
"""5520 bytes: six chunks of the smallest size."""
Floats = npt.NDArray[np.float32]


def piece(tensor: str, offsets: tuple[int, ...], shape: tuple[int, ...], sends: tuple[int, int] | None = None) -> Piece:
    """Return a box of a tensor of ``LAYOUT``, zeros, sent whole by default."""
    (span,) = [span for span in LAYOUT.spans if span.spec.name == tensor]
    ranges = ranges_of_box(span.start, span.spec.shape, offsets, shape)
    local = torch.zeros(shape)
    return Piece(span, local, ranges, sends or (0, local.numel()))


def model(seed: int) -> Floats:
    """Return all elements in the order of the layout."""
    return np.random.default_rng(seed).standard_normal(LAYOUT.size, np.float32)


def manifest_of(flat: Floats) -> BlobManifest:
    return BlobManifest.of_buffer(flat.tobytes(), MIN_CHUNK_BYTES)


def chunk(flat: Floats, number: int) -> memoryview:
    first, stop = manifest_of(flat).chunk_range(number)
    return memoryview(flat.tobytes())[first:stop]


def places(ranges: tuple[ElementRange, ...]) -> npt.NDArray[np.int64]:
    """Return the elements that ranges name, in order."""
    rows = [
        np.add.outer(one.offset + one.stride * np.arange(one.count), np.arange(one.block)).reshape(-1) for one in ranges
    ]
    return np.concatenate(rows)
