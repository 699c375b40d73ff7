"""The model that a round starts from: fetched chunk by chunk, only changed chunks, no damaged ones."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import numpy as np
import pytest

from atoll.datacenter.federation.base import Base
from atoll.wire.digest import BlobManifest
from atoll.wire.errors import DigestError
from tests.datacenter.federation.parts import Floats, chunk, manifest_of, model, piece, places


@pytest.fixture
def base(tmp_path: Path) -> Base:
    """The base of a rank with some columns of the matrix and the end of the vector."""
    return Base(tmp_path / "scratch" / "base", [piece("w", (0, 8), (40, 5)), piece("b", (90,), (10,))])


def fetch(base: Base, flat: Floats) -> list[int]:
    """Fetch what is missing, and return the numbers of the chunks."""
    lacking = base.lacks(manifest_of(flat))
    for number in lacking:
        base.take(manifest_of(flat), number, chunk(flat, number))
    return lacking


def assert_holds(base: Base, flat: Floats) -> None:
    for index, held in enumerate(base.pieces):
        np.testing.assert_array_equal(base.of(index).numpy(), flat[places(held.ranges)])


def test_what_is_held_arrives_and_then_only_what_has_changed(base: Base) -> None:
    flat = model(0)
    assert base.changed == {0, 1}
    assert fetch(base, flat) == [0, 1, 2, 3, 4, 5]
    assert_holds(base, flat)
    assert base.lacks(manifest_of(flat)) == []

    base.taken_over()
    flat[40 * 32 + 95] += 1.0
    assert fetch(base, flat) == [5]
    assert base.changed == {1}
    assert_holds(base, flat)

    flat[0] += 1.0  # in a chunk that this rank needs, but not in its part
    base.taken_over()
    assert fetch(base, flat) == [0]
    assert base.changed == set()
    assert_holds(base, flat)


def test_chunks_in_which_nothing_lies_are_not_fetched(tmp_path: Path) -> None:
    base = Base(tmp_path / "base", [piece("w", (38, 0), (2, 32))])
    flat = model(1)
    assert fetch(base, flat) == [4]
    assert_holds(base, flat)


def test_a_model_in_chunks_of_another_size_is_fetched_whole(base: Base) -> None:
    flat = model(2)
    fetch(base, flat)
    other = BlobManifest.of_buffer(flat.tobytes(), 2048)
    assert base.lacks(other) == [0, 1, 2]


def test_a_damaged_chunk_is_refused_and_lacks_still(base: Base) -> None:
    flat, before = model(3), model(2)
    fetch(base, before)
    damaged = bytearray(chunk(flat, 2))
    damaged[7] ^= 1
    with pytest.raises(DigestError):
        base.take(manifest_of(flat), 2, memoryview(damaged))
    assert 2 in base.lacks(manifest_of(flat))
    assert_holds(base, before)
    fetch(base, flat)
    assert_holds(base, flat)


def test_the_file_goes_with_its_base(tmp_path: Path) -> None:
    base = Base(tmp_path / "base", [piece("b", (0,), (100,))])
    assert (tmp_path / "base").exists()
    base.close()
    assert not (tmp_path / "base").exists()


def test_a_disk_without_room_is_found_at_once_and_named(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match=r"bytes .*federation\.scratch.*" + re.escape(str(tmp_path))):
            Base(tmp_path / "base", [piece("b", (0,), (100,))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_may_hold_nothing(tmp_path: Path) -> None:
    assert Base(tmp_path / "base", []).lacks(manifest_of(model(0))) == []
