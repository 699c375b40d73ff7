"""Updates for the tests of ingest: values cut into chunks and written to a spool like streams do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from atoll.server.aggregation import Grid, grid_for
from atoll.server.ingest.commit import DurableUpload, commit_upload
from atoll.server.ingest.coordinator_api import UploadGrant
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.server.ingest.spool import Spool
from atoll.server.ingest.upload_ref import UploadRef
from atoll.wire.chunks import Chunk, ElementRange, header_of, update_digest
from atoll.wire.encoding import Encoding, FloatArray, encode

RUN = "raaaaaaaaaaaa"
ALICE = "paaaaaaaaaaaa"
BOB = "pbbbbbbbbbbbb"
SIZE = 1000
MAX_ABS = 32.0
GRID: Grid = grid_for(100, MAX_ABS)


def upload_id(number: int) -> str:
    return f"{number:032x}"


def ref(participant: str = ALICE, number: int = 1, *, at: tuple[int, int] = (0, 0), run: str = RUN) -> UploadRef:
    return UploadRef(run, *at, participant, upload_id(number))


def values_of(seed: int, size: int = SIZE) -> FloatArray:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def chunk_of(values: FloatArray, start: int, stop: int, encoding: Encoding = Encoding.FLOAT32) -> Chunk:
    payload = encode(values[start:stop], encoding).tobytes()
    return Chunk(header_of(ElementRange.run(start, stop - start), encoding, payload), memoryview(payload), None)


def chunks_of(values: FloatArray, step: int = 100) -> list[Chunk]:
    return [chunk_of(values, start, min(start + step, len(values))) for start in range(0, len(values), step)]


def digest_of(chunks: Sequence[Chunk]) -> str:
    return update_digest([chunk.header for chunk in chunks])


def write(spool: Spool, upload: UploadRef, chunks: Iterable[Chunk]) -> Path:
    """Write one stream's chunks; returns the path of its data file."""
    segment = spool.open_segment(upload)
    for chunk in chunks:
        segment.append(chunk.header, chunk.payload, max_abs=1.0, sum_squares=2.0)
    segment.close()
    return spool.folder(upload) / f"{segment.name}.data"


def committed(spool: Spool, upload: UploadRef, chunks: Sequence[Chunk], elements: int = SIZE) -> DurableUpload:
    write(spool, upload, chunks)
    return commit_upload(spool, upload, elements, digest_of(chunks))


def grant(**changes: object) -> UploadGrant:
    facts: dict[str, object] = {"elements": SIZE, "max_abs": MAX_ABS, "max_bytes": 1 << 20, "max_weight": 100}
    facts |= {"max_uploads": 8, "max_chunks": 1000}
    return UploadGrant(**(facts | changes))  # type: ignore[arg-type]  # the tests' own keyword arguments


def sum_key(elements: int = SIZE, *, at: tuple[int, int] = (0, 0), run: str = RUN) -> SumKey:
    return SumKey(run, *at, elements, GRID)


def fold_item(upload: UploadRef, digest: str, weight: int = 1) -> FoldItem:
    return FoldItem(upload.run, upload.round, upload.attempt, upload.participant, digest, weight << GRID.weight_shift)


def flip(path: Path, position: int) -> None:
    """Change one bit of a file."""
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1
    path.write_bytes(raw)
