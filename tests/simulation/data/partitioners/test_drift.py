"""Label shares that move with the round: shares are met, rows change no more than they must."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from atoll.simulation import data
from atoll.simulation.data import PartitionError

LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(4), [200, 250, 300, 350]))


@pytest.fixture(scope="module")
def moving() -> data.Drift:
    """Six participants of 100 rows."""
    start, end = (data.dirichlet_shares(population=6, classes=4, alpha=1.0, seed=seed) for seed in (1, 2))
    return data.drift(LABELS, start=start, end=end, size=100, seed=3)


@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_shares_are_met_to_within_a_row(moving: data.Drift, progress: float) -> None:
    parts = moving.parts(progress)
    assert [part.size for part in parts] == [100] * moving.population
    assert all(np.unique(part).size == part.size for part in parts)
    counts = data.holdings(parts, LABELS).counts
    assert np.abs(counts - 100 * moving.shares(progress)).max() < 1


def test_the_ends_are_what_was_given(moving: data.Drift) -> None:
    assert np.allclose(moving.shares(0.0), moving.start)
    assert np.allclose(moving.shares(1.0), moving.end)


def test_rows_change_no_more_than_shares_do(moving: data.Drift) -> None:
    for before, after in ((0.0, 0.1), (0.1, 1.0)):
        counts = [data.holdings(moving.parts(progress), LABELS).counts for progress in (before, after)]
        for participant in range(moving.population):
            old, new = (set(moving.part(participant, progress).tolist()) for progress in (before, after))
            assert len(new - old) == np.maximum(counts[1] - counts[0], 0)[participant].sum()


def test_participants_share_no_row_while_classes_last() -> None:
    shares = np.full((11, 4), 0.25)
    parts = data.drift(LABELS, start=shares, end=shares, size=40, seed=1).parts(0.5)
    assert np.unique(np.concatenate(parts)).size == 11 * 40


def test_the_seed_decides_the_rows(moving: data.Drift) -> None:
    other = data.drift(LABELS, start=moving.start, end=moving.end, size=100, seed=4)
    assert set(moving.part(0, 0.0).tolist()) != set(other.part(0, 0.0).tolist())


def test_progress_over_rounds() -> None:
    assert [data.incremental(number, rounds=5) for number in (0, 2, 4, 9)] == [0.0, 0.5, 1.0, 1.0]
    assert data.incremental(0, rounds=1) == 0.0
    assert [data.sudden(number, at=2) for number in range(4)] == [0.0, 0.0, 1.0, 1.0]
    assert [data.recurring(number, period=4) for number in range(5)] == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"start": np.ones((2, 3))},
            "start has shape (2, 3): give one row per participant and 4 columns, one per class",
        ),
        ({"end": np.ones((3, 4))}, "start has 2 participants and end 3: give both for the same ones"),
        ({"end": np.zeros((2, 4))}, "end holds a negative or infinite share, or none at all for a participant"),
        (
            {"end": np.eye(2, 4), "size": 201},
            "size is 201: a share of 1 needs more than the 200 rows of class 0; lower",
        ),
        ({"size": 0}, "size is 0: give an integer of at least 1"),
    ],
)
def test_drift_refuses(arguments: dict[str, Any], says: str) -> None:
    usual: dict[str, Any] = {"start": np.ones((2, 4)), "end": np.ones((2, 4)), "size": 100, "seed": 1}
    with pytest.raises(PartitionError, match=re.escape(says)):
        data.drift(LABELS, **usual | arguments)


def test_the_size_in_the_error_is_the_largest_that_works() -> None:
    arguments: dict[str, Any] = {"start": np.eye(2, 4), "end": np.ones((2, 4)), "seed": 1}
    with pytest.raises(PartitionError, match="lower size to 200 at most"):
        data.drift(LABELS, size=300, **arguments)
    data.drift(LABELS, size=200, **arguments)


@pytest.mark.parametrize(
    ("participant", "progress", "says"),
    [
        (6, 0.5, "participant is 6: give a number from 0 to 5"),
        (0, 1.5, "progress is 1.5: give a number from 0 (start) to 1 (end)"),
    ],
)
def test_a_part_is_of_a_participant_and_a_progress(
    moving: data.Drift, participant: int, progress: float, says: str
) -> None:
    with pytest.raises(PartitionError, match=re.escape(says)):
        moving.part(participant, progress)


def test_alpha_is_above_0() -> None:
    with pytest.raises(PartitionError, match="alpha is 0: give a finite number above 0"):
        data.dirichlet_shares(population=2, classes=3, alpha=0, seed=1)
