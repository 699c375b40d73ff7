"""The files in which ranks keep their parts of the global model, and which ranks of a machine write each other's.

A file holds one rank's pieces one after another, a byte for each piece that tells whether it has changed, and last, as
JSON, where all of it lies: ranks of one machine open each other's files and know by that what to write there.
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
"""Bytes that are compared first: those of a model that was trained differ early."""
# machine, device, inode | where marks begin, size of the file | path
_ADDRESS = struct.Struct(f"<8sQQQQ{_PATH_BYTES}s")


@dataclass(frozen=True, slots=True)
class Run:
    """One range of a piece.

    Attributes:
        piece: its number.
        span: in bytes of the blob.
        place: where its bytes lie in the file.
    """

    piece: int
    span: ElementRange
    place: int


class KeptFile:
    """One rank's file, mapped.

    Attributes:
        runs: what is kept.
        content: all bytes of the file; shared by all who have it open.
    """

    def __init__(self, descriptor: int, marks_at: int, runs: Sequence[Run]) -> None:
        self._descriptor, self._marks_at = descriptor, marks_at
        self.runs = tuple(runs)
        self.content: Bytes = np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)

    @classmethod
    def make(cls, path: Path, pieces: Sequence[Piece]) -> KeptFile:
        """A new file; every piece counts as changed."""
        runs = list(_runs(pieces))
        marks_at = max((_aligned(run.place + run.span.size) for run in runs), default=0)
        rows = [[run.piece, *astuple(run.span), run.place] for run in runs]
        tail = b"\1" * len(pieces) + json.dumps(rows).encode()
        descriptor = _opened(path, marks_at + len(tail))
        os.pwrite(descriptor, tail, marks_at)
        return cls(descriptor, marks_at, runs)

    def close(self) -> None:
        """Once; the map goes with the last view of it."""
        os.close(self._descriptor)

    def marks(self, pieces: int) -> Bytes:
        """For each of so many pieces: 1 if it has changed since it was set to 0."""
        return self.content[self._marks_at : self._marks_at + pieces]

    def write(self, run: Run, position: int, found: Bytes, *, fresh: bool) -> None:
        """Write bytes of a run, unless they are there already.

        By system calls: the first store to a mapped page after the kernel has written it out costs a fault.

        Args:
            run: one of ``runs``.
            position: among its bytes.
            found: the bytes.
            fresh: they are known to be others.
        """
        place = run.place + position
        if not fresh and _same(self.content[place : place + found.size], found):
            return
        self.content[self._marks_at + run.piece] = 1
        left = found.data
        while left.nbytes:
            written = os.pwrite(self._descriptor, left, place)
            place, left = place + written, left[written:]

    def address(self, path: Path) -> bytes:
        """By which other ranks of this machine find it; always of the same length."""
        name, found = os.fsencode(path.absolute()), os.fstat(self._descriptor)
        if len(name) > _PATH_BYTES:
            return bytes(_ADDRESS.size)
        return _ADDRESS.pack(_machine(), found.st_dev, found.st_ino, self._marks_at, found.st_size, name)


def neighbours(mine: KeptFile, path: Path, pieces: int, device: torch.device) -> tuple[list[KeptFile], int]:
    """The files of all ranks of this machine in order of rank, and which of them is this rank's; collective.

    Alone with its own is each rank of a silo in which some rank cannot open the file of another one of its machine:
    containers that share a machine need not share a folder.

    Args:
        mine: this rank's file.
        path: where it lies.
        pieces: in it.
        device: where ranks talk.
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


def share_out(files: Sequence[KeptFile], mine: int, chunk_bytes: int) -> Mapping[int, list[tuple[KeptFile, Run]]]:
    """The chunks that one rank fetches, and what is to be written of each.

    A chunk of which several ranks of the machine hold something is fetched by one of them, who writes all of it; they
    share such chunks so that all fetch about as much. Every rank comes to the same result.

    Args:
        files: of the machine's ranks.
        mine: which of them is this rank's.
        chunk_bytes: of the blob.
    """
    holders: dict[int, dict[int, list[Run]]] = {}
    for index, file in enumerate(files):
        for run in file.runs:
            for number in chunks_of(run.span, chunk_bytes).tolist():
                holders.setdefault(number, {}).setdefault(index, []).append(run)
    load = [0] * len(files)
    for ranks in holders.values():
        if len(ranks) == 1:
            load[next(iter(ranks))] += 1
    found: dict[int, list[tuple[KeptFile, Run]]] = {}
    for number, ranks in sorted(holders.items()):
        taker = min(ranks, key=lambda index: (load[index], index))
        if len(ranks) > 1:
            load[taker] += 1
        if taker == mine:
            found[number] = [(files[index], run) for index, runs in ranks.items() for run in runs]
    return found


def _runs(pieces: Sequence[Piece]) -> Iterator[Run]:
    place = 0
    for index, piece in enumerate(pieces):
        width = piece.span.spec.dtype.itemsize
        for span in piece.ranges:
            offset = piece.span.byte_start + (span.offset - piece.span.start) * width
            yield Run(index, ElementRange(offset, span.block * width, span.stride * width, span.count), place)
            place += span.size * width
        place = _aligned(place)


def _aligned(place: int) -> int:
    """So that each piece is aligned to its type."""
    return -(-place // 8) * 8


def _same(one: Bytes, other: Bytes) -> bool:
    return np.array_equal(one[:_GLANCE], other[:_GLANCE]) and np.array_equal(one, other)


def _machine() -> bytes:
    """Names the running kernel: the same for all its containers, another one after a restart."""
    return blake2b(_BOOT.read_bytes(), digest_size=8).digest()


def _open_other(address: bytes) -> KeptFile | None:
    """The file of another rank; None if it is not to be seen here."""
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
    return KeptFile(descriptor, marks_at, [Run(row[0], ElementRange(*row[1:5]), row[5]) for row in rows])


def _opened(path: Path, size: int) -> int:
    """A new file, whoever still has an old one open; a full disk is found now, not by a signal later."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        os.close(descriptor)
        path.unlink()
        what = f"{size:,} bytes for what a round starts from (federation.scratch)"
        raise OSError(error.errno, f"{what}: {os.strerror(error.errno or 0)}", str(path.parent)) from error
    return descriptor
