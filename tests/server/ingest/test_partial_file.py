from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from atoll.server.aggregation import Accumulator, MergedSum, PartialSumError, grid_for
from atoll.server.aggregation.partial import BLOCK
from atoll.server.disk.stored_checksum import stored_checksum
from atoll.server.ingest.partial_file import MAX_METADATA_BYTES, PartialFile, write_partial
from atoll.wire.encoding import Encoding
from tests.server.aggregation.updates import run_cuts, update_of

SIZE = 600
SUMS_AT = 4096


def accumulator(*names: str, size: int = SIZE) -> Accumulator:
    made = Accumulator(size, grid_for(100))
    for seed, name in enumerate(names):
        values = np.random.default_rng(seed).standard_normal(size)
        update_of(name, 3, values, run_cuts(size, size, [Encoding.FLOAT32])).fold_into(made)
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "part"
    write_partial(path, accumulator("a", "b"))
    return path


def test_files_merge_like_accumulators(tmp_path: Path) -> None:
    size = BLOCK + 5
    for name in "ab":
        write_partial(tmp_path / name, accumulator(name, size=size))
    parts = [PartialFile(tmp_path / name) for name in "ab"]
    for name in "ab":
        (tmp_path / name).unlink()  # the maps keep the bytes
    merged = MergedSum(parts)
    expected = MergedSum([accumulator(name, size=size) for name in "ab"])
    assert np.array_equal(merged.sum_block(0, size), expected.sum_block(0, size))
    write_partial(tmp_path / "both", merged)
    both = PartialFile(tmp_path / "both")
    assert both.updates == {"a", "b"}
    assert (both.total_weight, both.grid) == (expected.total_weight, expected.grid)
    assert np.array_equal(both.sum_block(3, size), expected.sum_block(3, size))


def test_the_header_is_little_endian_and_documented(path: Path) -> None:
    data = path.read_bytes()
    magic, version, metadata_bytes, size, checksum = struct.unpack_from("<8sIIQ8s", data)
    assert (magic, version, size) == (b"ATOLLSUM", 2, SIZE)
    assert checksum == stored_checksum(data[SUMS_AT:])
    metadata = json.loads(data[40 : 40 + metadata_bytes])
    assert metadata["updates"] == ["a", "b"]
    assert np.frombuffer(data, "<i8", offset=SUMS_AT).tolist() == PartialFile(path).sum_block(0, SIZE).tolist()


def test_every_truncation_is_noticed(path: Path) -> None:
    data = path.read_bytes()
    for length in (0, 1, 8, 39, 40, 100, 200, SUMS_AT - 1, SUMS_AT, SUMS_AT + 8, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(PartialSumError) as caught:
            PartialFile(path)
        assert str(path) in str(caught.value)
        assert "again" in caught.value.detail.remedy
    path.write_bytes(data + b"\0")
    with pytest.raises(PartialSumError, match="expected"):
        PartialFile(path)


def test_every_flipped_bit_of_header_and_sums_is_noticed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    header_end = 40 + struct.unpack_from("<I", data, 12)[0]
    places = [*range(header_end), *range(SUMS_AT, len(data), 97), len(data) - 1]
    for place in places:
        for bit in (0, 7):
            data[place] ^= 1 << bit
            path.write_bytes(data)
            with pytest.raises(PartialSumError):
                PartialFile(path)
            data[place] ^= 1 << bit
    path.write_bytes(data)
    assert PartialFile(path).updates == {"a", "b"}


@pytest.mark.parametrize(
    "metadata",
    [
        b"not json",
        b"[]",
        b'{"grid":{"fraction_bits":99,"max_abs":32.0,"weight_shift":0,"weight_total_bits":24},"total_weight":1,"updates":[]}',
        b'{"grid":{},"total_weight":1,"updates":[]}',
        b'{"total_weight":1}',
    ],
)
def test_metadata_that_makes_no_sense_is_refused(tmp_path: Path, metadata: bytes) -> None:
    fixed = struct.pack("<8sIIQ8s", b"ATOLLSUM", 2, len(metadata), 1, stored_checksum(bytes(8)))
    head = fixed + stored_checksum(fixed + metadata) + metadata
    path = tmp_path / "odd"
    path.write_bytes(head.ljust(SUMS_AT, b"\0") + bytes(8))
    with pytest.raises(PartialSumError, match="metadata cannot be read"):
        PartialFile(path)


def test_another_version_is_named(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8] = 1
    path.write_bytes(data)
    with pytest.raises(PartialSumError, match="version 1 of the format, this server reads 2"):
        PartialFile(path)


def test_a_file_left_half_way_has_no_header(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes(SUMS_AT) + data[SUMS_AT:])
    with pytest.raises(PartialSumError, match="not finished"):
        PartialFile(path)


def test_ids_beyond_the_header_are_refused(tmp_path: Path) -> None:
    made = accumulator("a" * MAX_METADATA_BYTES)
    with pytest.raises(PartialSumError, match="update ids"):
        write_partial(tmp_path / "part", made)
