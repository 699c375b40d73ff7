from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.disk.stored_checksum import stored_checksum
from atoll.server.stores.blob_builder import BlobBuilder
from atoll.server.stores.blob_footer import StoredManifest
from atoll.wire.digest import MIN_CHUNK_BYTES, BlobManifest

CUT = MIN_CHUNK_BYTES


def expected(blob: bytes) -> StoredManifest:
    chunks = [blob[start : start + CUT] for start in range(0, len(blob), CUT)]
    return StoredManifest(BlobManifest.of_buffer(blob, CUT), tuple(map(stored_checksum, chunks)))


@given(st.binary(max_size=5 * CUT), st.lists(st.integers(0, 3 * CUT), max_size=8))
def test_pieces_of_any_sizes_give_the_same(blob: bytes, sizes: list[int]) -> None:
    builder = BlobBuilder(CUT)
    rest = memoryview(blob)
    for size in sizes:
        builder.update(rest[:size])
        rest = rest[size:]
    builder.update(rest)
    assert builder.finish() == expected(blob)


def test_arrays_are_taken() -> None:
    array = np.arange(1000, dtype=np.float32)
    builder = BlobBuilder(CUT)
    builder.update(array.data)
    assert builder.finish() == expected(array.tobytes())
