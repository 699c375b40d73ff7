"""The differences that a rank sends, compared with numpy; rounding errors return in the next round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from atoll.client import UpdateError
from atoll.client._transfer.elements import cut_ranges
from atoll.datacenter.federation.base import Base
from atoll.datacenter.federation.difference import Difference
from atoll.datacenter.federation.lane import Lane
from atoll.datacenter.federation.residuals import Residuals
from atoll.wire.chunks import ElementRange
from atoll.wire.encoding import Encoding, as_received, decode, stored_items
from tests.datacenter.federation.late_lane import LateLane
from tests.datacenter.federation.parts import Floats, chunk, manifest_of, model, piece, places

CHUNK_ELEMENTS = 256
MAX_ABS = 32.0
PIECES = [("w", (0, 8), (40, 5), (50, 200)), ("w", (0, 16), (40, 16), (0, 640)), ("b", (0,), (100,), (0, 0))]
"""This rank sends the end of the first piece, and nothing of the last."""


@pytest.fixture
def base(tmp_path: Path) -> Base:
    """Holds ``model(0)``."""
    made = Base(tmp_path / "base", [piece(*one) for one in PIECES])
    start = model(0)
    for number in made.lacks(manifest_of(start)):
        made.take(manifest_of(start), number, chunk(start, number))
    return made


@pytest.fixture(params=["cpu", "late"])
def lane(request: pytest.FixtureRequest) -> Lane:
    """The CPU's lane, and an emulated GPU's."""
    return Lane(torch.device("cpu")) if request.param == "cpu" else LateLane()


def train(base: Base, flat: Floats) -> None:
    """Set the local weights."""
    for held in base.pieces:
        held.local.copy_(torch.from_numpy(flat[places(held.ranges)]).view(held.local.shape))


def sent(difference: Difference, encoding: Encoding) -> tuple[Floats, tuple[ElementRange, ...]]:
    """Return what the receiver decodes, chunk after chunk, and the chunks."""
    chunks = tuple(cut_ranges(difference.ranges, CHUNK_ELEMENTS))
    received = []
    for one in chunks:
        out = np.empty(stored_items(encoding, one.size), encoding.storage)
        difference.read(one, encoding, out)
        received.append(decode(out.tobytes(), encoding, one.size).astype(np.float32))
    return np.concatenate(received), chunks


@pytest.mark.parametrize("held", [False, True])
def test_it_is_local_less_global(base: Base, lane: Lane, tmp_path: Path, *, held: bool) -> None:
    train(base, model(1))
    difference = Difference(base, Residuals(None, 0, tmp_path), MAX_ABS, [0, 1, 2], lane)
    if held:
        difference.hold(tuple(cut_ranges(difference.ranges, CHUNK_ELEMENTS)), Encoding.FLOAT32)
        train(base, model(2))
    found, chunks = sent(difference, Encoding.FLOAT32)
    assert found.size == 150 + 640
    np.testing.assert_array_equal(found, (model(1) - model(0))[places(chunks)])


def test_only_the_wanted_pieces_are_sent(base: Base, lane: Lane, tmp_path: Path) -> None:
    train(base, model(1))
    found, chunks = sent(Difference(base, Residuals(None, 0, tmp_path), MAX_ABS, [1], lane), Encoding.FLOAT32)
    assert found.size == 640
    np.testing.assert_array_equal(found, (model(1) - model(0))[places(chunks)])


@pytest.mark.parametrize("encoding", [Encoding.BFLOAT16, Encoding.INT8_BLOCK, Encoding.INT4_BLOCK])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("held", [False, True])
def test_what_is_rounded_off_comes_back_round_after_round(
    base: Base, lane: Lane, tmp_path: Path, encoding: Encoding, *, kept: bool, held: bool
) -> None:
    """The sum of what was received is the sum of the updates, except for the last rounding error."""
    residuals = Residuals(tmp_path / "kept" if kept else None, 0, tmp_path)
    total, wanted, lost = np.zeros(790), np.zeros(790), np.zeros(790, np.float32)
    for seed in range(1, 6):
        train(base, model(seed))
        difference = Difference(base, residuals, MAX_ABS, [0, 1, 2], lane)
        residuals.adopt(f"u{seed - 1}", difference.tag)
        if held:
            difference.hold(tuple(cut_ranges(difference.ranges, CHUNK_ELEMENTS)), encoding)
            train(base, model(100))
        found, chunks = transferred(difference, encoding, f"u{seed}")
        update = (model(seed) - model(0))[places(chunks)]
        np.testing.assert_array_equal(found, receive(update + lost, chunks, encoding))
        lost = update + lost - found
        total, wanted = total + found, wanted + update
    assert np.abs(lost).max() > 1e-4
    np.testing.assert_allclose(total + lost, wanted, atol=1e-5)
    residuals.close()


def transferred(difference: Difference, encoding: Encoding, upload: str) -> tuple[Floats, tuple[ElementRange, ...]]:
    """Send an update, and keep the rounding errors after it."""
    difference.begin(tuple(cut_ranges(difference.ranges, CHUNK_ELEMENTS)), encoding)
    found = sent(difference, encoding)
    difference.keep(upload)
    return found


def receive(values: Floats, chunks: tuple[ElementRange, ...], encoding: Encoding) -> Floats:
    parts = np.split(values, np.cumsum([one.size for one in chunks])[:-1])
    return np.concatenate([as_received(part, encoding) for part in parts]).astype(np.float32)


def test_an_update_that_is_not_counted_leaves_nothing_behind(base: Base, lane: Lane, tmp_path: Path) -> None:
    """Nor does one whose chunks are read again: the errors before it stay as they are."""
    residuals = Residuals(None, 0, tmp_path)
    train(base, model(1))
    first, _ = transferred(Difference(base, residuals, MAX_ABS, [0, 1, 2], lane), Encoding.BFLOAT16, "u1")
    difference = Difference(base, residuals, MAX_ABS, [0, 1, 2], lane)
    residuals.adopt("", difference.tag)
    for _ in range(2):
        again, _ = sent(difference, Encoding.BFLOAT16)
        np.testing.assert_array_equal(first, again)


def test_errors_of_parts_that_an_update_leaves_out_stay(base: Base, lane: Lane, tmp_path: Path) -> None:
    residuals = Residuals(None, 0, tmp_path)
    train(base, model(1))
    first = Difference(base, residuals, MAX_ABS, [0, 1, 2], lane)
    residuals.adopt("", first.tag)
    found, chunks = transferred(first, Encoding.INT4_BLOCK, "u1")
    lost = (model(1) - model(0))[places(chunks)] - found
    second = Difference(base, residuals, MAX_ABS, [1], lane)
    residuals.adopt("u1", second.tag)
    transferred(second, Encoding.INT4_BLOCK, "u2")
    third = Difference(base, residuals, MAX_ABS, [0], lane)
    residuals.adopt("u2", third.tag)
    found, chunks = sent(third, Encoding.INT4_BLOCK)
    update = (model(1) - model(0))[places(chunks)]
    np.testing.assert_array_equal(found, receive(update + lost[: update.size], chunks, Encoding.INT4_BLOCK))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 40.0, -40.0])
def test_a_value_that_no_server_takes_is_refused_with_its_tensor(
    base: Base, lane: Lane, tmp_path: Path, value: float
) -> None:
    flat = model(0)
    flat[20 * 32 + 17] = value
    train(base, flat)
    with pytest.raises(UpdateError, match="'w' has a value that is not finite or beyond 32"):
        sent(Difference(base, Residuals(None, 0, tmp_path), MAX_ABS, [0, 1, 2], lane), Encoding.FLOAT32)


@pytest.mark.parametrize("encoding", [Encoding.FLOAT32, Encoding.INT8_BLOCK])
def test_the_norm_is_of_what_is_sent_and_the_scale_goes_before_rounding(
    base: Base, lane: Lane, tmp_path: Path, encoding: Encoding
) -> None:
    """Earlier rounding errors are included; what the scale removes does not return."""
    residuals = Residuals(None, 0, tmp_path)
    train(base, model(1))
    first = Difference(base, residuals, MAX_ABS, [0, 1, 2], lane)
    residuals.adopt("", first.tag)
    found, chunks = transferred(first, encoding, "u1")
    change = (model(1) - model(0))[places(chunks)]
    lost = change - found
    difference = Difference(base, residuals, MAX_ABS, [0, 1, 2], lane)
    residuals.adopt("u1", difference.tag)
    update = change + lost
    assert difference.norm(encoding) == pytest.approx(float(np.linalg.norm(update.astype(np.float64))), rel=1e-6)
    difference.scale = 0.125
    found, chunks = transferred(difference, encoding, "u2")
    scaled = update * np.float32(0.125)
    np.testing.assert_array_equal(found, receive(scaled, chunks, encoding))
    if encoding is Encoding.INT8_BLOCK:
        after = np.zeros(790, np.float32)
        residuals.adopt("u2", difference.tag)
        residuals.read(0, after)
        np.testing.assert_array_equal(after, scaled - found)


def test_a_part_that_is_not_finite_has_no_norm(base: Base, lane: Lane, tmp_path: Path) -> None:
    flat = model(0)
    flat[20 * 32 + 17] = np.nan
    train(base, flat)
    with pytest.raises(UpdateError, match="'w' has a value that is not finite"):
        Difference(base, Residuals(None, 0, tmp_path), MAX_ABS, [0, 1, 2], lane).norm(Encoding.FLOAT32)
