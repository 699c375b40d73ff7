"""What a rank sends, compared with numpy; rounding errors return in the next round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from atoll.client import UpdateError
from atoll.client._transfer.elements import cut_ranges
from atoll.datacenter.federation.base import Base
from atoll.datacenter.federation.difference import Difference, Rounding
from atoll.wire.chunks import ElementRange
from atoll.wire.encoding import Encoding, as_received, decode, stored_items
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


@pytest.mark.parametrize("copied", [False, True])
def test_it_is_local_less_global(base: Base, *, copied: bool) -> None:
    train(base, model(1))
    difference = Difference(base, Rounding(), MAX_ABS, [0, 1, 2], copied=copied)
    if copied:
        train(base, model(2))
    found, chunks = sent(difference, Encoding.FLOAT32)
    assert found.size == 150 + 640
    np.testing.assert_array_equal(found, (model(1) - model(0))[places(chunks)])


def test_only_the_wanted_pieces_are_sent(base: Base) -> None:
    train(base, model(1))
    found, chunks = sent(Difference(base, Rounding(), MAX_ABS, [1]), Encoding.FLOAT32)
    assert found.size == 640
    np.testing.assert_array_equal(found, (model(1) - model(0))[places(chunks)])


@pytest.mark.parametrize("encoding", [Encoding.BFLOAT16, Encoding.INT8_BLOCK, Encoding.INT4_BLOCK])
def test_what_is_rounded_off_comes_back_round_after_round(base: Base, encoding: Encoding) -> None:
    """The sum of what was received is the sum of the updates, except for the last rounding error."""
    rounding = Rounding()
    total, wanted, lost = np.zeros(790), np.zeros(790), np.zeros(790, np.float32)
    for seed in range(1, 6):
        train(base, model(seed))
        difference = Difference(base, rounding, MAX_ABS, [0, 1, 2])
        found, chunks = sent(difference, encoding)
        update = (model(seed) - model(0))[places(chunks)]
        np.testing.assert_array_equal(found, receive(update + lost, chunks, encoding))
        lost = update + lost - found
        total, wanted = total + found, wanted + update
        difference.settle(chunks, encoding)
    assert np.abs(lost).max() > 1e-4
    np.testing.assert_allclose(total + lost, wanted, atol=1e-5)


def receive(values: Floats, chunks: tuple[ElementRange, ...], encoding: Encoding) -> Floats:
    parts = np.split(values, np.cumsum([one.size for one in chunks])[:-1])
    return np.concatenate([as_received(part, encoding) for part in parts]).astype(np.float32)


def test_an_update_that_is_not_counted_leaves_nothing_behind(base: Base) -> None:
    rounding = Rounding()
    train(base, model(1))
    first, _ = sent(Difference(base, rounding, MAX_ABS, [0, 1, 2]), Encoding.BFLOAT16)
    again, _ = sent(Difference(base, rounding, MAX_ABS, [0, 1, 2]), Encoding.BFLOAT16)
    np.testing.assert_array_equal(first, again)
    assert rounding.state_dict() == {}


def test_a_checkpoint_brings_back_what_was_rounded_off(base: Base) -> None:
    rounding, other = Rounding(), Rounding()
    train(base, model(1))
    difference = Difference(base, rounding, MAX_ABS, [0, 1, 2])
    _, chunks = sent(difference, Encoding.BFLOAT16)
    difference.settle(chunks, Encoding.BFLOAT16)
    other.load_state_dict(rounding.state_dict())
    mine, _ = sent(Difference(base, rounding, MAX_ABS, [0, 1, 2]), Encoding.BFLOAT16)
    theirs, _ = sent(Difference(base, other, MAX_ABS, [0, 1, 2]), Encoding.BFLOAT16)
    np.testing.assert_array_equal(mine, theirs)


def test_what_another_layout_of_ranks_rounded_off_is_let_go(base: Base) -> None:
    rounding = Rounding()
    rounding.load_state_dict({"lost": torch.ones(7)})
    Difference(base, rounding, MAX_ABS, [0, 1, 2])
    assert rounding.lost is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 40.0, -40.0])
def test_a_value_that_no_server_takes_is_refused_with_its_tensor(base: Base, value: float) -> None:
    flat = model(0)
    flat[20 * 32 + 17] = value
    train(base, flat)
    with pytest.raises(UpdateError, match="'w' has a value that is not finite or beyond 32"):
        sent(Difference(base, Rounding(), MAX_ABS, [0, 1, 2]), Encoding.FLOAT32)


@pytest.mark.parametrize("encoding", [Encoding.FLOAT32, Encoding.INT8_BLOCK])
def test_the_norm_is_of_what_is_sent_and_the_scale_goes_before_rounding(base: Base, encoding: Encoding) -> None:
    """Earlier rounding errors are included; what the scale removes does not return."""
    rounding = Rounding()
    train(base, model(1))
    first = Difference(base, rounding, MAX_ABS, [0, 1, 2])
    _, chunks = sent(first, encoding)
    first.settle(chunks, encoding)
    lost = np.zeros(790, np.float32) if rounding.lost is None else rounding.lost.numpy().copy()
    difference = Difference(base, rounding, MAX_ABS, [0, 1, 2])
    update = (model(1) - model(0))[places(chunks)] + lost
    assert difference.norm(encoding) == pytest.approx(float(np.linalg.norm(update.astype(np.float64))), rel=1e-6)
    difference.scale = 0.125
    found, _ = sent(difference, encoding)
    np.testing.assert_array_equal(found, receive(update * np.float32(0.125), chunks, encoding))
    difference.settle(chunks, encoding)
    if rounding.lost is not None:
        np.testing.assert_allclose(rounding.lost.numpy(), update * 0.125 - found, atol=1e-7)


def test_a_part_that_is_not_finite_has_no_norm(base: Base) -> None:
    flat = model(0)
    flat[20 * 32 + 17] = np.nan
    train(base, flat)
    with pytest.raises(UpdateError, match="'w' has a value that is not finite"):
        Difference(base, Rounding(), MAX_ABS, [0, 1, 2]).norm(Encoding.FLOAT32)
