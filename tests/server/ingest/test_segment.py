import errno
import os
from pathlib import Path

import pytest

from atoll.server.ingest.records import read_index
from atoll.server.ingest.segment import Segment
from tests.server.ingest.uploads import chunks_of, values_of

NAME = "0123456789abcdef"


def test_a_record_follows_its_payload(tmp_path: Path) -> None:
    segment = Segment(tmp_path, NAME)
    chunks = chunks_of(values_of(0), 250)
    for chunk in chunks:
        segment.append(chunk.header, chunk.payload, 1.0, 2.0)
    segment.close()
    assert (tmp_path / f"{NAME}.data").read_bytes() == b"".join(chunk.payload for chunk in chunks)
    assert [record.header for record in read_index(tmp_path / f"{NAME}.index")] == [chunk.header for chunk in chunks]
    assert (tmp_path / f"{NAME}.data").stat().st_mode & 0o777 == 0o600


def test_what_a_full_disk_left_half_way_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused write leaves a part of its payload, which the next write must overwrite."""
    segment = Segment(tmp_path, NAME)
    first, second, third = chunks_of(values_of(0, 300), 100)
    segment.append(first.header, first.payload, 1.0, 2.0)
    whole = os.pwrite

    def half(descriptor: int, payload: memoryview, position: int) -> int:
        whole(descriptor, payload[: payload.nbytes // 2], position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match="No space"):
        segment.append(second.header, second.payload, 1.0, 2.0)
    monkeypatch.setattr(os, "pwrite", whole)
    segment.append(third.header, third.payload, 1.0, 2.0)
    segment.close()
    assert (tmp_path / f"{NAME}.data").read_bytes() == bytes(first.payload) + bytes(third.payload)
    assert [record.header for record in read_index(tmp_path / f"{NAME}.index")] == [first.header, third.header]


def test_a_segment_is_never_written_twice(tmp_path: Path) -> None:
    Segment(tmp_path, NAME).close()
    with pytest.raises(FileExistsError):
        Segment(tmp_path, NAME)
