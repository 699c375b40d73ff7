"""Partial sums being received: resumed, checked, and never larger than their updates allow."""

from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from atoll.server.aggregation import Grid
from atoll.server.errors import ConflictError, InvalidRequestError, LimitExceededError, NotFoundError
from atoll.server.gateway.host import receipts
from atoll.server.gateway.host.receipts import Receipt, Receipts
from atoll.server.gateway.pieces import PIECE, bounds_of, pack
from atoll.server.ingest.node import FoldItem, SumKey

ELEMENTS = PIECE + 3
GRID = Grid(fraction_bits=20, max_abs=1.0, weight_shift=0, weight_total_bits=10)
KEY = SumKey("r1", 2, 0, ELEMENTS, GRID)
ITEMS = (FoldItem("r1", 2, 0, "p1", "d1", 3), FoldItem("r1", 1, 0, "p2", "d2", 4))
MOST = 7 * (2**20 + 1)
SUMS = np.random.default_rng(5).integers(-MOST, MOST, ELEMENTS, np.int64)


@pytest.fixture
def receipt(tmp_path: Path) -> Receipt:
    return Receipt(tmp_path / "sum.partial", KEY, ITEMS)


def send(receipt: Receipt, *indices: int, sums: np.ndarray[tuple[int], np.dtype[np.int64]] = SUMS) -> None:
    for index in indices:
        start, stop = bounds_of(index, ELEMENTS)
        receipt.add(index, pack(sums[start:stop]))


def digest() -> bytes:
    return blake3(SUMS.tobytes()).digest()


def test_a_whole_sum_is_read_as_it_was_sent(receipt: Receipt) -> None:
    send(receipt, 0, 1)
    receipt.finish(digest())
    found = receipt.sum()
    receipt.remove()
    assert np.array_equal(found.sum_block(0, ELEMENTS), SUMS)
    assert (found.size, found.grid, found.total_weight) == (ELEMENTS, GRID, 7)
    assert found.updates == {item.update_id for item in ITEMS}


def test_what_arrived_is_not_needed_again(receipt: Receipt) -> None:
    send(receipt, 0)
    assert receipt.next == 1
    send(receipt, 0, 1)  # a second stream, which had not heard of the first piece
    receipt.finish(digest())
    assert receipt.complete


def test_pieces_come_in_order_and_all_of_them(receipt: Receipt) -> None:
    with pytest.raises(ConflictError, match="piece 1 comes, 0 is next"):
        send(receipt, 1)
    send(receipt, 0)
    with pytest.raises(ConflictError, match="piece 1 is missing"):
        receipt.finish(digest())


def test_another_digest_begins_anew(receipt: Receipt) -> None:
    send(receipt, 0, 1)
    with pytest.raises(ConflictError, match="does not match"):
        receipt.finish(bytes(32))
    assert (receipt.next, receipt.complete) == (0, False)
    send(receipt, 0, 1)
    receipt.finish(digest())


def test_a_complete_sum_is_not_written_again(receipt: Receipt) -> None:
    """A file that shrinks while it is mapped kills the process that reads it (SIGBUS)."""
    send(receipt, 0, 1)
    receipt.finish(digest())
    found = receipt.sum()
    with pytest.raises(ConflictError, match="does not match"):
        receipt.finish(bytes(32))
    send(receipt, 0, 1, sums=SUMS // 2)
    receipt.finish(digest())
    assert (receipt.next, receipt.complete) == (2, True)
    assert np.array_equal(found.sum_block(0, ELEMENTS), SUMS)


@pytest.mark.parametrize("value", [MOST + 1, -MOST - 1, -(2**63)])
def test_a_sum_beyond_its_updates_is_refused(receipt: Receipt, value: int) -> None:
    sums = SUMS.copy()
    sums[5] = value
    with pytest.raises(InvalidRequestError, match="more than its updates can add up to"):
        send(receipt, 0, sums=sums)


def test_the_same_sum_has_one_receipt_until_it_is_forgotten(tmp_path: Path) -> None:
    found = Receipts(tmp_path / "partials")
    first = found.expect("gateway-a", "n", KEY, ITEMS)
    assert found.expect("gateway-a", "n", KEY, ITEMS) is found.get("gateway-a", "n") is first
    with pytest.raises(NotFoundError):
        found.get("gateway-b", "n")
    found.forget_run("gateway-a", "r1", (1, 9))
    assert found.get("gateway-a", "n") is first
    send(first, 0)
    found.forget_run("gateway-a", "r1", (2, 0))
    with pytest.raises(NotFoundError):
        found.get("gateway-a", "n")
    assert list((tmp_path / "partials").iterdir()) == []


def test_a_gateway_has_so_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "MAX_RECEIPTS", 1)
    found = Receipts(tmp_path / "partials")
    found.expect("gateway-a", "1", KEY, ITEMS)
    found.expect("gateway-b", "1", KEY, ITEMS)
    with pytest.raises(LimitExceededError):
        found.expect("gateway-a", "2", KEY, ITEMS)
