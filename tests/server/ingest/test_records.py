import dataclasses
import logging
from pathlib import Path

import pytest

from atoll.server.errors import CorruptDataError
from atoll.server.ingest.records import RECORD_BYTES, Record, norm_of, read_index, unpack_record
from atoll.wire.chunks import ChunkHeader, ElementRange
from atoll.wire.encoding import Encoding
from tests.server.ingest.uploads import flip

HEADER = ChunkHeader(ElementRange(5, 4, 16, 3), Encoding.BFLOAT16, bytes(range(32)))
RECORD = Record(HEADER, "0123456789abcdef", 77, 1.5, 12.25, b"checksum")


def test_record_survives_packing() -> None:
    raw = RECORD.pack()
    assert len(raw) == RECORD_BYTES
    assert unpack_record(raw, Path("x.index"), RECORD.segment) == RECORD


@pytest.mark.parametrize("position", range(0, RECORD_BYTES, 7))
def test_every_changed_byte_of_a_record_is_noticed(position: int) -> None:
    raw = bytearray(RECORD.pack())
    raw[position] ^= 0x10
    with pytest.raises(CorruptDataError, match="checksum"):
        unpack_record(bytes(raw), Path("x.index"), RECORD.segment)


def test_an_index_is_read_up_to_its_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / f"{RECORD.segment}.index"
    second = dataclasses.replace(RECORD, position=99)
    path.write_bytes(RECORD.pack() + second.pack()[:-1])
    assert read_index(path) == [RECORD]


def test_a_damaged_record_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / f"{RECORD.segment}.index"
    second = dataclasses.replace(RECORD, position=99)
    path.write_bytes(RECORD.pack() + second.pack())
    flip(path, 3)
    with caplog.at_level(logging.WARNING):
        assert read_index(path) == [second]
    assert "record 0 is left out" in caplog.text


def test_norm_does_not_depend_on_the_order_of_arrival() -> None:
    squares = [1e-9, 1e9, 3.0, 1e-3]
    records = [dataclasses.replace(RECORD, sum_squares=value) for value in squares]
    assert norm_of(records) == norm_of(records[::-1])
