"""Files in which ranks keep their parts of the global model, and how ranks of one machine write each other's files.

A file holds the pieces of one rank one after another, then one byte per piece that tells whether it has changed, then a
JSON index. Ranks of one machine open each other's files and use the index to write into them.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from atoll.datacenter.federation.ranges import Bytes, chunks_of
from atoll.wire.chunks import ElementRange

if TYPE_CHECKING:
    from atoll.datacenter.federation.pieces import Piece

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PATH_BYTES = 1024
_GLANCE = 4096
"""Bytes that are compared first: models that were trained differ early."""
# machine, device, inode | where marks begin, size of the file | path
_ADDRESS = struct.Struct(f"<8sQQQQ{_PATH_BYTES}s")


@dataclass(frozen=True, slots=True)
class FileRange:
    """A contiguous part of the file: one range of a piece.

    Attributes:
        piece: number of the piece.
        span: the range in bytes of the blob.
        place: offset in the file.
    """

    piece: int
    span: ElementRange
    place: int


class BaseFile:
    """The mapped file of one rank.

    Attributes:
        ranges: the ranges in the file.
        content: all bytes of the file; shared by all processes that have it open.
    """

    def __init__(self, descriptor: int, marks_at: int, ranges: Sequence[FileRange]) -> None:
        self._descriptor, self._marks_at = descriptor, marks_at
        self.ranges = tuple(ranges)
        self.content: Bytes = np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)

    @classmethod
    def make(cls, path: Path, pieces: Sequence[Piece]) -> BaseFile:
        """Create a file; every piece counts as changed."""
        ranges = list(_file_ranges(pieces))
        marks_at = max((_aligned(file_range.place + file_range.span.size) for file_range in ranges), default=0)
        rows = [[file_range.piece, *astuple(file_range.span), file_range.place] for file_range in ranges]
        tail = b"\1" * len(pieces) + json.dumps(rows).encode()
        descriptor = _opened(path, marks_at + len(tail))
        os.pwrite(descriptor, tail, marks_at)
        return cls(descriptor, marks_at, ranges)

    def close(self) -> None:
        """Close the descriptor, once; the map is freed with the last view of it."""
        os.close(self._descriptor)

    def marks(self, pieces: int) -> Bytes:
        """Return one byte per piece: 1 if it has changed since it was set to 0."""
        return self.content[self._marks_at : self._marks_at + pieces]

    def write(self, file_range: FileRange, position: int, found: Bytes, *, fresh: bool) -> None:
        """Write bytes of a range, unless the file already holds them.

        Uses system calls: the first store to a mapped page after the kernel has written it out costs a fault.

        Args:
            file_range: one of ``ranges``.
            position: offset in the range.
            found: the bytes.
            fresh: the bytes are known to differ.
        """
        place = file_range.place + position
        if not fresh and _same(self.content[place : place + found.size], found):
            return
        self.content[self._marks_at + file_range.piece] = 1
        left = found.data
        while left.nbytes:
            written = os.pwrite(self._descriptor, left, place)
            place, left = place + written, left[written:]

    def address(self, path: Path) -> bytes:
        """Return the address under which other ranks of this machine find the file; always of the same length."""
        name, found = os.fsencode(path.absolute()), os.fstat(self._descriptor)
        if len(name) > _PATH_BYTES:
            return bytes(_ADDRESS.size)
        return _ADDRESS.pack(_machine(), found.st_dev, found.st_ino, self._marks_at, found.st_size, name)


def neighbours(mine: BaseFile, path: Path, pieces: int, device: torch.device) -> tuple[list[BaseFile], int]:
    """Return the files of all ranks of this machine in order of rank, and the index of this rank's; collective.

    If some rank of the silo cannot open the file of another rank of its machine, each rank gets only its own file:
    containers on one machine need not share a folder.

    Args:
        mine: this rank's file.
        path: path of the file.
        pieces: number of pieces in it.
        device: device for communication.
    """
    own = torch.frombuffer(bytearray(mine.address(path) + struct.pack("<Q", pieces)), dtype=torch.uint8).to(device)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    there = [one.cpu().numpy().tobytes() for one in gathered]
    found, rank = {dist.get_rank(): mine}, dist.get_rank()
    for other, address in enumerate(there):
        if other != rank and address[:8] == there[rank][:8]:
            opened = _open_other(address)
            if opened is not None:
                found[other] = opened
    wanted = sum(address[:8] == there[rank][:8] for address in there)
    well = torch.tensor(int(len(found) == wanted and there[rank][:8] != bytes(8)), device=device)
    dist.all_reduce(well, dist.ReduceOp.MIN)
    if not well:
        for other in found.keys() - {rank}:
            found[other].close()
        return [mine], 0
    ranks = sorted(found)
    return [found[one] for one in ranks], ranks.index(rank)


def share_out(files: Sequence[BaseFile], mine: int, chunk_bytes: int) -> Mapping[int, list[tuple[BaseFile, FileRange]]]:
    """Return the chunks that one rank fetches, and the ranges to write from each.

    A chunk that several ranks of the machine need is fetched by one of them, which writes it for all. These chunks are
    distributed so that all ranks fetch about the same amount. Every rank computes the same result.

    Args:
        files: files of the machine's ranks.
        mine: index of this rank's file.
        chunk_bytes: size of the blob's chunks.
    """
    holders: dict[int, dict[int, list[FileRange]]] = {}
    for index, file in enumerate(files):
        for file_range in file.ranges:
            for number in chunks_of(file_range.span, chunk_bytes).tolist():
                holders.setdefault(number, {}).setdefault(index, []).append(file_range)
    load = [0] * len(files)
    for ranks in holders.values():
        if len(ranks) == 1:
            load[next(iter(ranks))] += 1
    found: dict[int, list[tuple[BaseFile, FileRange]]] = {}
    for number, ranks in sorted(holders.items()):
        taker = min(ranks, key=lambda index: (load[index], index))
        if len(ranks) > 1:
            load[taker] += 1
        if taker == mine:
            found[number] = [(files[index], file_range) for index, ranges in ranks.items() for file_range in ranges]
    return found


def _file_ranges(pieces: Sequence[Piece]) -> Iterator[FileRange]:
    place = 0
    for index, piece in enumerate(pieces):
        width = piece.span.spec.dtype.itemsize
        for span in piece.ranges:
            offset = piece.span.byte_start + (span.offset - piece.span.start) * width
            yield FileRange(index, ElementRange(offset, span.block * width, span.stride * width, span.count), place)
            place += span.size * width
        place = _aligned(place)


def _aligned(place: int) -> int:
    """Align each piece to its dtype."""
    return -(-place // 8) * 8


def _same(one: Bytes, other: Bytes) -> bool:
    return np.array_equal(one[:_GLANCE], other[:_GLANCE]) and np.array_equal(one, other)


def _machine() -> bytes:
    """Identify the running kernel: the same in all its containers, different after a restart."""
    return blake2b(_BOOT.read_bytes(), digest_size=8).digest()


def _open_other(address: bytes) -> BaseFile | None:
    """Open the file of another rank; None if it is not visible here."""
    _, device, inode, marks_at, size, name = _ADDRESS.unpack(address[: _ADDRESS.size])
    (pieces,) = struct.unpack("<Q", address[_ADDRESS.size :])
    try:
        descriptor = os.open(os.fsdecode(name.rstrip(b"\0")), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    found = os.fstat(descriptor)
    if (found.st_dev, found.st_ino) != (device, inode):
        os.close(descriptor)
        return None
    start = marks_at + pieces
    rows = json.loads(os.pread(descriptor, size - start, start))
    return BaseFile(descriptor, marks_at, [FileRange(row[0], ElementRange(*row[1:5]), row[5]) for row in rows])


def _opened(path: Path, size: int) -> int:
    """Create a new file, even if an old one is still open. Allocating now raises an error for a full disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        os.close(descriptor)
        path.unlink()
        what = f"{size:,} bytes for the model that a round starts from (federation.scratch)"
        raise OSError(error.errno, f"{what}: {os.strerror(error.errno or 0)}", str(path.parent)) from error
    return descriptor
