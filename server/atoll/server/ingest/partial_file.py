"""Partial sums in files, shared by the processes of a round: written once, memory-mapped, checked before use.

Little-endian: magic ``ATOLLSUM``, version (u32), bytes of metadata (u32), elements (u64), XXH3 of the sums (8 bytes),
XXH3 of header and metadata (8 bytes), metadata (JSON: grid, total weight, update ids), zeros up to a
multiple of 4096, sums (int64). The header is written last, so an unfinished file has none. The file is not fsynced: it
can be made again from the round's spools, and a torn one fails its checksum.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from atoll.server.aggregation.errors import GridError, PartialSumError
from atoll.server.aggregation.grid import Grid
from atoll.server.aggregation.partial import BLOCK, PartialSum
from atoll.server.disk.stored_checksum import CHECKSUM_BYTES, stored_checksum

MAGIC = b"ATOLLSUM"
VERSION = 2
MAX_METADATA_BYTES = 64 << 20
_FIXED = struct.Struct("<8sIIQ8s")
_ALIGNMENT = 4096
_REMEDY = "fold its updates again"
_ITEM_BYTES = 8


def write_partial(path: Path, partial: PartialSum, written: Callable[[], None] = lambda: None) -> None:
    """Write a partial sum to ``path``; holds one block at a time, and calls ``written`` after each.

    Raises:
        PartialSumError: if the update ids do not fit in the header.
        OSError: if the file cannot be written.
    """
    metadata = _metadata_of(partial)
    hasher = xxhash.xxh3_64()
    with path.open("wb") as file:
        file.seek(_sums_offset(len(metadata)))
        for start in range(0, partial.size, BLOCK):
            block = partial.sum_block(start, min(start + BLOCK, partial.size)).astype("<i8", copy=False)
            hasher.update(block.data.cast("B"))
            file.write(block.data)
            written()
        file.flush()
        fixed = _FIXED.pack(MAGIC, VERSION, len(metadata), partial.size, hasher.digest())
        file.seek(0)
        file.write(fixed + stored_checksum(fixed + metadata) + metadata)


class PartialFile:
    """A partial sum in a memory-mapped file; nothing of the model's size is held besides the page cache.

    Opening reads the whole file once and compares its checksum. The map lives as long as the last reference to it, so
    the file may be unlinked right after opening.

    Raises:
        PartialSumError: if the file is truncated, altered, or not a partial sum.
        OSError: if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        if path.stat().st_size < _FIXED.size + CHECKSUM_BYTES:
            raise PartialSumError(f"{path}: too short for a partial sum", _REMEDY)
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.size, metadata, sums_checksum = _checked_header(self._map)
            self.grid, self.total_weight, self.updates = _parsed(metadata)
            self._offset = _sums_offset(len(metadata))
            self._check_sums(sums_checksum)
        except PartialSumError as error:
            raise PartialSumError(f"{path}: {error}", _REMEDY) from error

    def sum_block(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The integer sums of elements [start, stop): a read-only view into the map."""
        return np.frombuffer(self._map, "<i8", stop - start, self._offset + start * _ITEM_BYTES)

    def _check_sums(self, expected: bytes) -> None:
        length = self._offset + self.size * _ITEM_BYTES
        if len(self._map) != length:
            raise PartialSumError(f"{len(self._map)} bytes long, expected {length}")
        if stored_checksum(memoryview(self._map)[self._offset : length]) != expected:
            raise PartialSumError("the sums do not match their checksum")


def _metadata_of(partial: PartialSum) -> bytes:
    fields = {"grid": asdict(partial.grid), "total_weight": partial.total_weight, "updates": sorted(partial.updates)}
    metadata = json.dumps(fields, separators=(",", ":")).encode()
    if len(metadata) > MAX_METADATA_BYTES:
        raise PartialSumError(f"{len(partial.updates)} update ids need {len(metadata)} bytes, at most 64 MiB")
    return metadata


def _checked_header(data: mmap.mmap) -> tuple[int, bytes, bytes]:
    """Number of elements, metadata and checksum of the sums."""
    fixed = data[: _FIXED.size]
    magic, version, metadata_bytes, size, sums_checksum = _FIXED.unpack(fixed)
    if magic != MAGIC:
        raise PartialSumError("not a partial sum, or one that was not finished")
    if version != VERSION:
        raise PartialSumError(f"version {version} of the format, this server reads {VERSION}")
    start = _FIXED.size + CHECKSUM_BYTES
    metadata = data[start : start + metadata_bytes]
    if len(metadata) != metadata_bytes or data[_FIXED.size : start] != stored_checksum(fixed + metadata):
        raise PartialSumError("the header does not match its checksum")
    return size, metadata, sums_checksum


def _parsed(metadata: bytes) -> tuple[Grid, int, frozenset[str]]:
    try:
        fields = json.loads(metadata)
        return Grid(**fields["grid"]), int(fields["total_weight"]), frozenset(map(str, fields["updates"]))
    except (ValueError, KeyError, TypeError, GridError) as error:
        raise PartialSumError(f"the metadata cannot be read: {error}") from error


def _sums_offset(metadata_bytes: int) -> int:
    end = _FIXED.size + CHECKSUM_BYTES + metadata_bytes
    return -(-end // _ALIGNMENT) * _ALIGNMENT
