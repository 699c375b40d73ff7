from __future__ import annotations

import struct

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from atoll.wire.digest import MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, BlobManifest, chunk_digest
from atoll.wire.errors import DigestError

CUT = MIN_CHUNK_BYTES
blobs = st.binary(max_size=5 * CUT)


@given(blobs)
def test_manifest_matches_its_definition(blob: bytes) -> None:
    manifest = BlobManifest.of_buffer(blob, CUT)
    chunks = [blob[start : start + CUT] for start in range(0, len(blob), CUT)]
    assert manifest.chunk_digests == tuple(blake3(chunk).digest() for chunk in chunks)
    canonical = b"atoll blob 1\n" + struct.pack("<QI", len(blob), CUT) + b"".join(manifest.chunk_digests)
    assert manifest.name == blake3(canonical).hexdigest()
    for index, chunk in enumerate(chunks):
        assert blob[slice(*manifest.chunk_range(index))] == chunk
        manifest.verify_chunk(index, chunk)


@given(st.binary(min_size=CUT + 1, max_size=3 * CUT), st.data())
def test_any_flipped_bit_is_noticed(blob: bytes, data: st.DataObject) -> None:
    manifest = BlobManifest.of_buffer(blob, CUT)
    index = data.draw(st.integers(0, manifest.chunk_count - 1))
    start, stop = manifest.chunk_range(index)
    wrong = bytearray(blob[start:stop])
    wrong[data.draw(st.integers(0, len(wrong) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DigestError, match="does not match"):
        manifest.verify_chunk(index, wrong)


def test_verify_names_index_and_length() -> None:
    manifest = BlobManifest.of_buffer(bytes(CUT + 1), CUT)
    for index in (-1, 2):
        with pytest.raises(DigestError, match=f"the blob has no chunk {index}"):
            manifest.verify_chunk(index, b"")
    with pytest.raises(DigestError, match="has 2 bytes, expected 1"):
        manifest.verify_chunk(1, b"ab")


def test_the_cut_is_part_of_the_name() -> None:
    assert BlobManifest.of_buffer(b"", CUT).name != BlobManifest.of_buffer(b"", 2 * CUT).name


@pytest.mark.parametrize(
    ("size", "cut", "digests", "message"),
    [
        (0, MIN_CHUNK_BYTES - 1, (), "allowed are"),
        (0, MAX_CHUNK_BYTES + 1, (), "allowed are"),
        (-1, CUT, (), "negative"),
        (1, CUT, (), "expected 1"),
        (CUT, CUT, (bytes(32), bytes(32)), "expected 1"),
        (1, CUT, (bytes(31),), "32 bytes"),
    ],
)
def test_refuses_manifests(size: int, cut: int, digests: tuple[bytes, ...], message: str) -> None:
    with pytest.raises(DigestError, match=message):
        BlobManifest(size, cut, digests)


def test_chunk_digest_is_blake3() -> None:
    """The empty input of the BLAKE3 paper's test vectors."""
    assert chunk_digest(b"").hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
