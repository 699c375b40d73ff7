"""Rows of a step are a pure function of its number, so layout and restarts change nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.datacenter.data.batches import Batch, Batches, Shuffled, even_counts
from atoll.datacenter.data.documents import Documents, in_memory
from atoll.datacenter.data.loader import Loader
from atoll.datacenter.data.packing import Packed, Rows
from atoll.datacenter.errors import DataError

pytestmark = pytest.mark.slow

SEQUENCE = 4


def numbered(sequences: int) -> Documents:
    """One document that yields exactly this many sequences; every token differs."""
    return in_memory([np.arange(sequences * SEQUENCE + 1, dtype=np.uint16)], 1 << 16, "numbers")


def batches(sequences: int, global_batch: int, seed: int = 0) -> Batches:
    return Batches(Shuffled(Packed(numbered(sequences), SEQUENCE), global_batch, seed))


def whole(parts: list[Batch]) -> list[list[int]]:
    return [row for part in parts for row in part.tokens.tolist()]


@settings(max_examples=40, deadline=None)
@given(sequences=st.integers(1, 60), share=st.data(), seed=st.integers(0, 2**63 - 1), world=st.integers(1, 9))
def test_every_sequence_comes_once_in_an_epoch_whatever_the_world(
    sequences: int, share: st.DataObject, seed: int, world: int
) -> None:
    global_batch = share.draw(st.integers(1, sequences))
    found = batches(sequences, global_batch, seed)
    steps = -(-3 * sequences // global_batch)
    seen = [
        row[0] // SEQUENCE
        for _ in range(steps)
        for step in (found.next_step(),)
        for row in whole([step.share(rank, world) for rank in range(world)])
    ]
    for epoch in range(3):
        assert sorted(seen[epoch * sequences : (epoch + 1) * sequences]) == list(range(sequences))
    assert found.state()["epoch"] == steps * global_batch // sequences


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any), step=st.integers(0, 1 << 40))
def test_uneven_shares_are_the_same_rows_in_the_same_order(counts: list[int], step: int) -> None:
    found = batches(50, sum(counts)).step(step)
    assert whole([found.counted_share(rank, counts) for rank in range(len(counts))]) == whole([found.share(0, 1)])


@settings(max_examples=40, deadline=None)
@given(stop=st.integers(0, 12), before=st.integers(1, 4), after=st.integers(1, 4))
def test_a_resumed_job_on_another_world_sees_what_an_undisturbed_one_sees(stop: int, before: int, after: int) -> None:
    undisturbed = [whole([batches(17, 5).step(step).share(0, 1)]) for step in range(16)]
    first, second = batches(17, 5), batches(17, 5)
    seen = [
        whole([step.share(rank, before) for rank in range(before)]) for _ in range(stop) for step in [first.next_step()]
    ]
    second.load(json.loads(json.dumps(first.state())))
    seen += [
        whole([step.share(rank, after) for rank in range(after)])
        for _ in range(16 - stop)
        for step in [second.next_step()]
    ]
    assert seen == undisturbed


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        tuple(
            row[0] for step in range(10) for row in whole([batches(100, 10, seed).step(10 * epoch + step).share(0, 1)])
        )
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(orders) == 16
    assert tuple(range(0, 400, 4)) not in orders


def test_labels_are_the_next_tokens_and_micro_batches_are_views() -> None:
    share = batches(8, 8).next_step().share(0, 1)
    assert torch.equal(share.labels, share.tokens + 1)
    assert share.tokens.dtype == share.labels.dtype == torch.int64
    parts = list(share.micro_batches(3))
    assert [len(part) for part in parts] == [3, 3, 2]
    assert torch.equal(torch.cat([part.tokens for part in parts]), share.tokens)
    assert parts[0].tokens.data_ptr() == share.tokens.data_ptr()
    assert sum(part.counted for part in parts) == share.counted == 32


def test_too_little_data_is_refused_with_the_numbers() -> None:
    with pytest.raises(DataError, match=r"numbers: 7 sequences are too few for one global batch of 8"):
        batches(7, 8)


@pytest.mark.parametrize(
    "other", [batches(16, 4), batches(17, 5), batches(17, 4, seed=1), Batches(Shuffled(Packed(numbered(17), 3), 4, 0))]
)
def test_a_state_of_other_data_is_refused(other: Batches) -> None:
    with pytest.raises(DataError, match="use the same"):
        other.load(batches(17, 4).state())


@pytest.mark.parametrize("state", [{}, {"step": -1}, {"step": True}, {"step": "3"}, {"step": 3}])
def test_what_is_no_state_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(DataError, match="not a state of data"):
        batches(17, 4).load(state)


def test_shares_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(DataError, match=r"\[1, 2\] rows are not a global batch of 4"):
        batches(17, 4).step(0).counted_share(0, (1, 2))


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(0, 100), world=st.integers(1, 20))
def test_even_counts_differ_by_at_most_one(rows: int, world: int) -> None:
    counts = even_counts(rows, world)
    assert sum(counts) == rows
    assert len(counts) == world
    assert max(counts) - min(counts) <= 1


def test_the_loader_gives_its_ranks_shares_and_its_state_is_that_of_what_was_handed_out() -> None:
    with Loader(batches(17, 5), rank=1, world=2, depth=3) as loader:
        seen = [whole([loader.next()]) for _ in range(4)]
        state = loader.state()
        assert loader.wait_s > 0
    assert seen == [whole([batches(17, 5).step(step).share(1, 2)]) for step in range(4)]
    assert state["step"] == 4
    with Loader(batches(17, 5), rank=0, world=1) as loader:
        loader.next()
        loader.load(state)
        assert whole([loader.next()]) == whole([batches(17, 5).step(4).share(0, 1)])


def test_the_loader_takes_other_counts_from_the_next_step_on() -> None:
    with Loader(batches(17, 5), rank=0, world=2, depth=2) as loader:
        assert len(loader.next()) == 3
        loader.reshare((1, 4))
        assert whole([loader.next()]) == whole([batches(17, 5).step(1).counted_share(0, (1, 4))])
        loader.reshare((0, 5))
        assert len(loader.next()) == 0
    assert loader.state()["step"] == 3


class Unreadable(Shuffled):
    def rows(self, step: int, start: int, stop: int) -> Rows:
        if step == 1:
            raise OSError("input/output error")
        return super().rows(step, start, stop)


def test_what_cannot_be_read_is_told_to_the_trainer_at_its_step() -> None:
    with Loader(Batches(Unreadable(Packed(numbered(9), SEQUENCE), 2, 0)), rank=0, world=1) as loader:
        loader.next()
        with pytest.raises(DataError, match="step 1: data cannot be read: input/output error"):
            loader.next()
    with pytest.raises(DataError, match="step 1"):
        loader.next()
