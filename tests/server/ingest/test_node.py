import dataclasses
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atoll.server.aggregation import Accumulator
from atoll.server.errors import CorruptDataError, NotFoundError, StorageError
from atoll.server.ingest.commit import commit_upload
from atoll.server.ingest.node import FoldItem, IngestNode
from atoll.server.ingest.partial_file import PartialFile
from atoll.server.ingest.spool import Spool
from tests.patience import WAIT_S
from tests.server.ingest.uploads import (
    ALICE,
    BOB,
    GRID,
    SIZE,
    chunks_of,
    committed,
    digest_of,
    flip,
    fold_item,
    ref,
    sum_key,
    values_of,
    write,
)

CAROL = "pcccccccccccc"


@pytest.fixture
def node(spool: Spool) -> IngestNode:
    return IngestNode("main", spool)


def update(
    spool: Spool, participant: str, seed: int, weight: int = 1, at: tuple[int, int] = (0, 0), step: int = 100
) -> FoldItem:
    upload = ref(participant, seed, at=at)
    return fold_item(upload, committed(spool, upload, chunks_of(values_of(seed), step)).digest, weight)


def expected(*terms: tuple[int, int]) -> npt.NDArray[np.int64]:
    """The integer sum of (seed, weight) terms, by numpy."""
    total = np.zeros(SIZE, np.int64)
    for seed, weight in terms:
        scaled = np.rint(values_of(seed).astype(np.float64) * 2.0**GRID.fraction_bits).astype(np.int64)
        total += scaled * (weight << GRID.weight_shift)
    return total


def sums(accumulator: Accumulator) -> npt.NDArray[np.int64]:
    return accumulator.sum_block(0, SIZE).copy()


def test_each_update_counts_once(spool: Spool, node: IngestNode) -> None:
    alice, bob = update(spool, ALICE, 1, 3), update(spool, BOB, 2, 5)
    node.fold(sum_key(), [alice])
    node.fold(sum_key(), [alice, bob])
    node.fold(sum_key(), [bob])
    found = node.partial(sum_key(), [alice, bob])
    assert (sums(found) == expected((1, 3), (2, 5))).all()
    assert found.total_weight == 8 << GRID.weight_shift


def test_a_partial_sum_is_of_exactly_the_set_asked_for(spool: Spool, node: IngestNode) -> None:
    alice, bob, carol = update(spool, ALICE, 1), update(spool, BOB, 2), update(spool, CAROL, 3)
    node.fold(sum_key(), [alice, bob])
    assert (sums(node.partial(sum_key(), [bob, carol])) == expected((2, 1), (3, 1))).all()
    assert (sums(node.partial(sum_key(), [alice])) == expected((1, 1))).all()
    assert (sums(node.partial(sum_key(), [])) == 0).all()
    assert (sums(node.partial(sum_key(), [carol, bob, alice])) == expected((1, 1), (2, 1), (3, 1))).all()


def test_the_memory_goes_from_round_to_round(spool: Spool, node: IngestNode) -> None:
    first = node.partial(sum_key(), [update(spool, ALICE, 1)])
    node.drop(sum_key().run, 0, 0)
    second = node.partial(sum_key(at=(1, 0)), [update(spool, BOB, 2, at=(1, 0))])
    assert second is first
    assert (sums(second) == expected((2, 1))).all()


def test_dropping_a_round_drops_those_before_it(spool: Spool, node: IngestNode) -> None:
    old = node.partial(sum_key(), [update(spool, ALICE, 1)])
    live = node.partial(sum_key(at=(2, 0)), [update(spool, BOB, 2)])
    node.drop(sum_key().run, 1, 5)
    assert node.partial(sum_key(at=(2, 0)), [update(spool, BOB, 2)]) is live
    assert node.partial(sum_key(at=(3, 0)), []) is old


def test_a_spare_of_another_size_is_not_used(spool: Spool, node: IngestNode) -> None:
    first = node.partial(sum_key(), [update(spool, ALICE, 1)])
    node.drop_run(sum_key().run)
    assert node.partial(sum_key(), []) is not first
    node.drop(sum_key().run, 9, 9)
    assert node.partial(sum_key(elements=10), []).size == 10


def test_fragments_of_unequal_sizes_share_one_memory(spool: Spool, node: IngestNode) -> None:
    values, found = values_of(1), []
    for number, (first, size) in enumerate(((0, 600), (600, 400), (0, 600), (700, 300))):
        at = (number, 0)
        chunks, upload = chunks_of(values)[first // 100 : (first + size) // 100], ref(at=at)
        write(spool, upload, chunks)
        item = fold_item(upload, commit_upload(spool, upload, size, digest_of(chunks), first).digest)
        made = node.partial(dataclasses.replace(sum_key(size, at=at), first=first), [item])
        assert made.mean_block(0, size) == pytest.approx(values[first : first + size], abs=2.0**-GRID.fraction_bits)
        assert (made.size, made.first) == (size, first)
        found.append(made)
        node.drop(sum_key().run, *at)
    assert all(one is found[0] for one in found)
    assert node.partial(sum_key(200, at=(9, 0)), []) is not found[0]  # a third of its room


def test_sums_of_two_runs_are_two_sums(spool: Spool, node: IngestNode) -> None:
    alice = update(spool, ALICE, 1)
    node.fold(sum_key(), [alice])
    node.fold(sum_key(run="rbbbbbbbbbbbb"), [alice])
    node.drop_run("rbbbbbbbbbbbb")
    assert (sums(node.partial(sum_key(), [alice])) == expected((1, 1))).all()


def test_a_damaged_upload_is_left_out_whole(spool: Spool, node: IngestNode) -> None:
    alice, bob = update(spool, ALICE, 1), update(spool, BOB, 2)
    flip(next(spool.folder(ref(BOB, 2)).glob("*.data")), 3990)
    with pytest.raises(CorruptDataError):
        node.fold(sum_key(), [alice, bob])
    with pytest.raises(CorruptDataError):
        node.partial(sum_key(), [alice, bob])
    assert (sums(node.partial(sum_key(), [alice])) == expected((1, 1))).all()


def test_an_upload_that_is_gone_is_named(spool: Spool, node: IngestNode) -> None:
    alice = update(spool, ALICE, 1)
    spool.drop_run(alice.run)
    with pytest.raises(NotFoundError, match=alice.digest):
        node.fold(sum_key(), [alice])


def test_concurrent_folds_take_turns(spool: Spool, node: IngestNode) -> None:
    items = [update(spool, f"p{name * 12}", seed) for seed, name in enumerate("abcdefgh")]
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(node.fold, sum_key(), [item]) for item in items * 3]:
            done.result(WAIT_S)
    assert (sums(node.partial(sum_key(), items)) == expected(*((seed, 1) for seed in range(8)))).all()


class HeldFold:
    """Holds the next fold half-way, under the sum's lock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()
        fold = Accumulator.fold

        def held(accumulator: Accumulator, *args: Any) -> None:
            self.entered.set()
            assert self.release.wait(WAIT_S)
            fold(accumulator, *args)

        monkeypatch.setattr(Accumulator, "fold", held)


def test_memory_does_not_change_hands_while_it_is_folded_into(
    spool: Spool, node: IngestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round is abandoned during a fold, which must not affect the next attempt's sum."""
    alice, bob = update(spool, ALICE, 1), update(spool, BOB, 2)
    held = HeldFold(monkeypatch)
    with ThreadPoolExecutor(3) as pool:
        folding = pool.submit(node.fold, sum_key(), [alice])
        assert held.entered.wait(WAIT_S)
        dropping = pool.submit(node.drop, sum_key().run, 0, 0)
        late = pool.submit(node.fold, sum_key(at=(0, 1)), [bob])
        assert not dropping.done()
        held.release.set()
        for done in (folding, dropping, late):
            done.result(WAIT_S)
    assert (sums(node.partial(sum_key(at=(0, 1)), [bob])) == expected((2, 1))).all()


def test_a_fold_that_waited_while_its_sum_was_dropped_begins_a_new_one(
    spool: Spool, node: IngestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = update(spool, ALICE, 1), update(spool, BOB, 2)
    held = HeldFold(monkeypatch)
    with ThreadPoolExecutor(3) as pool:
        folding = pool.submit(node.fold, sum_key(), [alice])
        assert held.entered.wait(WAIT_S)
        waiting = [pool.submit(node.drop, sum_key().run, 0, 0), pool.submit(node.fold, sum_key(), [bob])]
        held.release.set()
        for done in (folding, *waiting):
            done.result(WAIT_S)
    assert (sums(node.partial(sum_key(), [alice, bob])) == expected((1, 1), (2, 1))).all()


def test_a_partial_file_holds_the_same_sum(spool: Spool, node: IngestNode, tmp_path: Path) -> None:
    items = [update(spool, ALICE, 1, 3), update(spool, BOB, 2, 5)]
    path = tmp_path / "sum.partial"
    assert node.write_partial(sum_key(), items, path) == 8 << GRID.weight_shift
    found = PartialFile(path)
    assert (found.sum_block(0, SIZE) == expected((1, 3), (2, 5))).all()
    assert found.updates == {item.update_id for item in items}


def test_a_partial_file_that_cannot_be_written_is_tried_again_later(
    spool: Spool, node: IngestNode, tmp_path: Path
) -> None:
    with pytest.raises(StorageError, match=os.strerror(2)) as caught:
        node.write_partial(sum_key(), [update(spool, ALICE, 1)], tmp_path / "gone" / "sum.partial")
    assert caught.value.detail.retry_after_s is not None
