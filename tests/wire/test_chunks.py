from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import assume, given
from hypothesis import strategies as st

from atoll.wire.chunks import (
    ChunkHeader,
    ElementRange,
    Held,
    UploadKey,
    check_coverage,
    check_disjoint,
    frame_download,
    frame_upload,
    header_from_proto,
    header_of,
    header_to_proto,
    key_from_proto,
    key_to_proto,
    merged,
    pack_header,
    parse_download,
    parse_upload,
    range_from_proto,
    range_to_proto,
    unpack_headers,
    update_digest,
)
from atoll.wire.digest import MAX_CHUNK_BYTES
from atoll.wire.encoding import Encoding
from atoll.wire.errors import ChunkError, CoverageError, DigestError, WireError
from atoll.wire.v1 import tensors_pb2, transfer_pb2
from tests.wire.strategies import digests, element_ranges, headers, keys

small_headers = headers.filter(lambda header: header.payload_bytes <= 8192)


def payload_for(header: ChunkHeader, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(header.payload_bytes)


def by_protobuf(header: ChunkHeader, payload: bytes, key: UploadKey | None) -> transfer_pb2.UploadRequest:
    message = transfer_pb2.UploadRequest(chunk=header_to_proto(header), payload=payload)
    if key is not None:
        message.key.CopyFrom(key_to_proto(key))
    return message


# -- framing ----------------------------------------------------------------------------------------------------------


@given(small_headers, st.none() | keys)
def test_upload_frames_are_protobufs_own_bytes(header: ChunkHeader, key: UploadKey | None) -> None:
    payload = payload_for(header)
    assert frame_upload(header, payload, key) == by_protobuf(header, payload, key).SerializeToString()


@given(small_headers, st.none() | keys)
def test_upload_frames_parse_back(header: ChunkHeader, key: UploadKey | None) -> None:
    payload = payload_for(header)
    chunk = parse_upload(by_protobuf(header, payload, key).SerializeToString())
    assert (chunk.header, bytes(chunk.payload), chunk.key) == (header, payload, key)


def test_payload_is_a_view_into_the_message() -> None:
    header = header_of(ElementRange.run(0, 256), Encoding.FLOAT32, bytes(1024))
    message = frame_upload(header, bytes(1024))
    assert np.shares_memory(np.frombuffer(parse_upload(message).payload, np.uint8), np.frombuffer(message, np.uint8))


@given(small_headers, keys, st.permutations([0, 1, 2]))
def test_fields_in_any_order_parse_the_same(header: ChunkHeader, key: UploadKey, order: Sequence[int]) -> None:
    """Protobuf allows any order; only the one that we write is parsed without a copy."""
    payload = payload_for(header)
    whole = by_protobuf(header, payload, key)
    fields = [
        transfer_pb2.UploadRequest(key=whole.key).SerializeToString(),
        transfer_pb2.UploadRequest(chunk=whole.chunk).SerializeToString(),
        transfer_pb2.UploadRequest(payload=payload).SerializeToString(),
    ]
    chunk = parse_upload(b"".join(fields[index] for index in order))
    assert (chunk.header, bytes(chunk.payload), chunk.key) == (header, payload, key)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=300))
def test_download_frames_are_protobufs_own_bytes(index: int, payload: bytes) -> None:
    assume(payload)
    message = transfer_pb2.DownloadResponse(index=index, payload=payload).SerializeToString()
    assert frame_download(index, payload) == message
    parsed, view = parse_download(message)
    assert (parsed, bytes(view)) == (index, payload)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=300))
def test_download_fields_in_any_order_parse_the_same(index: int, payload: bytes) -> None:
    parts = [
        transfer_pb2.DownloadResponse(payload=payload).SerializeToString(),
        transfer_pb2.DownloadResponse(index=index).SerializeToString(),
    ]
    parsed, view = parse_download(b"".join(parts))
    assert (parsed, bytes(view)) == (index, payload)


@given(st.binary(max_size=400))
def test_random_bytes_are_read_as_protobuf_reads_them_or_refused(message: bytes) -> None:
    try:
        chunk = parse_upload(message)
    except WireError:
        return
    reference = transfer_pb2.UploadRequest.FromString(message)
    assert bytes(chunk.payload) == reference.payload
    assert chunk.header == header_from_proto(reference.chunk)


@given(st.binary(max_size=400))
def test_random_downloads_are_read_as_protobuf_reads_them_or_refused(message: bytes) -> None:
    try:
        index, payload = parse_download(message)
    except WireError:
        return
    reference = transfer_pb2.DownloadResponse.FromString(message)
    assert (index, bytes(payload)) == (reference.index, reference.payload)


@given(small_headers, keys, st.data())
def test_damaged_frames_never_do_more_than_be_refused(header: ChunkHeader, key: UploadKey, data: st.DataObject) -> None:
    message = bytearray(frame_upload(header, payload_for(header), key))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, min(len(message), 120) - 1))] = data.draw(st.integers(0, 255))
    message = message[: data.draw(st.integers(0, len(message)))]
    try:
        parse_upload(bytes(message))
    except WireError:
        return


def test_payload_length_must_fit_range_and_encoding() -> None:
    header = header_of(ElementRange.run(0, 4), Encoding.FLOAT32, bytes(16))
    with pytest.raises(ChunkError, match="payload of 15 bytes for 4 float32 elements: expected 16"):
        parse_upload(frame_upload(header, bytes(15)))
    with pytest.raises(ChunkError, match="payload of 0 bytes"):
        parse_upload(by_protobuf(header, b"", None).SerializeToString())


def test_verify_notices_other_bytes() -> None:
    header = header_of(ElementRange.run(3, 4), Encoding.FLOAT32, bytes(16))
    parse_upload(frame_upload(header, bytes(16))).verify()
    with pytest.raises(DigestError, match="element 3"):
        parse_upload(frame_upload(header, bytes(15) + b"x")).verify()


# -- headers and keys -------------------------------------------------------------------------------------------------


@given(headers)
def test_headers_survive_protobuf(header: ChunkHeader) -> None:
    message = transfer_pb2.ChunkHeader.FromString(header_to_proto(header).SerializeToString())
    assert header_from_proto(message) == header


@given(keys)
def test_keys_survive_protobuf(key: UploadKey) -> None:
    assert key_from_proto(transfer_pb2.UploadKey.FromString(key_to_proto(key).SerializeToString())) == key


def test_an_empty_tensor_set_means_model() -> None:
    assert key_from_proto(transfer_pb2.UploadKey()).tensor_set == "model"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoding": 9}, "encoding 9"),
        ({"digest": b"x"}, "digest of 1 bytes"),
        ({"range": tensors_pb2.ElementRange(block=0, stride=1, count=1)}, "block >= 1"),
        ({"range": tensors_pb2.ElementRange(block=2, stride=1, count=1)}, "stride >= block"),
        ({"range": tensors_pb2.ElementRange(offset=2**60, block=1, stride=1, count=1)}, "2\\^48"),
        ({"range": tensors_pb2.ElementRange(block=1, stride=2**47, count=2**40)}, "2\\^48"),
        ({"range": tensors_pb2.ElementRange(block=MAX_CHUNK_BYTES, stride=MAX_CHUNK_BYTES, count=1)}, "at most"),
    ],
)
def test_refuses_headers(fields: dict[str, object], message: str) -> None:
    header = transfer_pb2.ChunkHeader(
        range=tensors_pb2.ElementRange(block=1, stride=1, count=1),
        encoding=tensors_pb2.ENCODING_FLOAT32,
        digest=bytes(32),
    )
    for name, value in fields.items():
        if isinstance(value, tensors_pb2.ElementRange):
            header.range.CopyFrom(value)
        else:
            setattr(header, name, value)
    with pytest.raises(ChunkError, match=message):
        header_from_proto(header)


# -- ranges and coverage ----------------------------------------------------------------------------------------------


def elements(span: ElementRange) -> list[int]:
    """The definition, element by element."""
    return [span.offset + i * span.stride + j for i in range(span.count) for j in range(span.block)]


@given(element_ranges(largest=100))
def test_size_and_stop_follow_the_definition(span: ElementRange) -> None:
    named = elements(span)
    assert span.size == len(named) == len(set(named))
    assert span.stop == max(named) + 1
    assert span.contiguous == (named == list(range(span.offset, span.stop)))


tiny_ranges = st.builds(
    lambda offset, block, gap, count: ElementRange(offset, block, block + gap, count),
    st.integers(0, 12),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(1, 4),
)


@given(st.lists(tiny_ranges, max_size=5), st.integers(1, 20))
def test_coverage_agrees_with_counting(ranges: list[ElementRange], size: int) -> None:
    named = sorted(element for span in ranges for element in elements(span))
    if named == list(range(size)):
        check_coverage(ranges, size)
    else:
        with pytest.raises(CoverageError):
            check_coverage(ranges, size)


@given(st.lists(tiny_ranges, max_size=8), tiny_ranges)
def test_merged_ranges_stand_for_the_same_elements(ranges: list[ElementRange], asked: ElementRange) -> None:
    found = merged(ranges)
    named = {element for span in ranges for element in elements(span)}
    assert {element for span in found for element in elements(span)} == named
    assert all(span in Held(found) for span in ranges)
    if asked in Held(found):
        assert set(elements(asked)) <= named
    runs = [span for span in found if span.contiguous]
    assert all(one.stop < other.offset for one, other in pairwise(runs))


def test_forty_thousand_neighbours_are_one_range() -> None:
    assert merged(ElementRange.run(at, 1) for at in reversed(range(40_000))) == [ElementRange.run(0, 40_000)]


@given(st.lists(headers, max_size=5))
def test_packed_headers_are_read_back(several: list[ChunkHeader]) -> None:
    assert unpack_headers(b"".join(map(pack_header, several))) == several


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.randoms())
def test_column_shards_cover_a_matrix(rows: int, columns: int, ranks: int, shuffle: random.Random) -> None:
    """Tensor-parallel columns: rank r has ``columns`` of each row of ``ranks * columns``."""
    width = ranks * columns
    shards = [ElementRange(rank * columns, columns, width, rows) for rank in range(ranks)]
    shuffle.shuffle(shards)
    check_coverage(shards, rows * width)
    with pytest.raises(CoverageError):
        check_coverage([*shards, shards[0]], rows * width)
    if len(shards) > 1:
        with pytest.raises(CoverageError, match="missing"):
            check_coverage(shards[1:], rows * width)


def test_coverage_names_the_first_problem() -> None:
    run = ElementRange.run
    with pytest.raises(CoverageError, match="elements 0 to 1 are missing"):
        check_coverage([run(2, 2)], 4)
    with pytest.raises(CoverageError, match="elements 2 to 3 are missing"):
        check_coverage([run(0, 2)], 4)
    with pytest.raises(CoverageError, match="elements 1 to 1 are in the update twice"):
        check_coverage([run(0, 2), run(1, 3)], 4)
    with pytest.raises(CoverageError, match="has element 4; the round asks for elements up to 3"):
        check_coverage([run(0, 5)], 4)
    with pytest.raises(CoverageError, match="elements 0 to 3 are missing"):
        check_coverage([], 4)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 9), st.randoms())
def test_a_part_of_the_model_is_covered_by_its_own_elements_alone(
    lengths: list[int], first: int, shuffle: random.Random
) -> None:
    ends = [first + sum(lengths[: index + 1]) for index in range(len(lengths))]
    ranges = [ElementRange.run(end - length, length) for end, length in zip(ends, lengths, strict=True)]
    shuffle.shuffle(ranges)
    size = sum(lengths)
    check_coverage(ranges, size, first)
    check_disjoint(ranges, first + size)
    for start, problem in ((first + 1, "has element"), (first - 1, "missing")):
        if start >= 0:
            with pytest.raises(CoverageError, match=problem):
                check_coverage(ranges, size, start)
    with pytest.raises(CoverageError, match="up to"):
        check_coverage([*ranges, ElementRange.run(first + size, 1)], size, first)


@given(element_ranges(largest=3000), st.integers(0, 6000), st.integers(0, 2000))
def test_a_range_touches_what_it_has_an_element_of(span: ElementRange, start: int, length: int) -> None:
    elements = (np.arange(span.count)[:, None] * span.stride + span.offset + np.arange(span.block)).ravel()
    assert span.touches(start, start + length) == bool(((elements >= start) & (elements < start + length)).any())


def test_ranges_that_are_asked_for_must_lie_in_the_layout_and_apart() -> None:
    run = ElementRange.run
    check_disjoint([], 4)
    check_disjoint([run(3, 1), ElementRange(0, 1, 2, 2)], 4)
    with pytest.raises(CoverageError, match="element 2 is named twice"):
        check_disjoint([ElementRange(0, 1, 2, 2), run(1, 2)], 4)
    with pytest.raises(CoverageError, match="element 4 is named; the layout ends at 3"):
        check_disjoint([run(1, 4)], 4)


def test_a_range_goes_through_its_message_and_moves_whole() -> None:
    span = ElementRange(7, 2, 5, 3)
    assert range_from_proto(range_to_proto(span)) == span
    assert span.shifted(-7) == ElementRange(0, 2, 5, 3)
    with pytest.raises(ChunkError, match="offset >= 0"):
        span.shifted(-8)


def test_an_update_in_crumbs_is_refused_before_it_takes_memory() -> None:
    with pytest.raises(CoverageError, match="separate blocks, at most"):
        check_coverage([ElementRange(0, 1, 2, 2**40)], 2**41)


# -- digests ----------------------------------------------------------------------------------------------------------


@given(st.lists(headers, max_size=6), st.randoms())
def test_update_digest_matches_its_definition_in_any_order(listed: list[ChunkHeader], shuffle: random.Random) -> None:
    assume(len({header.range for header in listed}) == len(listed))
    hasher = blake3(b"atoll update 1\n")
    for header in sorted(listed, key=lambda item: item.range):
        span = header.range
        hasher.update(struct.pack("<QQQQI", span.offset, span.block, span.stride, span.count, header.encoding))
        hasher.update(header.digest)
    shuffle.shuffle(listed)
    assert update_digest(listed) == hasher.hexdigest()


@given(headers, digests)
def test_update_digest_tells_payloads_apart(header: ChunkHeader, digest: bytes) -> None:
    assume(digest != header.digest)
    assert update_digest([header]) != update_digest([ChunkHeader(header.range, header.encoding, digest)])
