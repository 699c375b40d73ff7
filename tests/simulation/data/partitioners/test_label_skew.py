"""Partitioners by label: what they promise, and what they refuse."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from atoll.simulation import data
from atoll.simulation.data import DataWarning, PartitionError

LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(5), [40, 60, 80, 100, 120]))


def counts_of(parts: data.Parts) -> data.Indices:
    return np.array([np.bincount(LABELS[part], minlength=5) for part in parts])


def classes_held(parts: data.Parts) -> set[int]:
    """How many classes participants hold."""
    return set((counts_of(parts) > 0).sum(axis=1).tolist())


def test_a_large_alpha_makes_parts_alike_and_a_small_one_makes_them_differ() -> None:
    largest = [
        data.holdings(data.dirichlet(LABELS, population=4, alpha=alpha, seed=2), LABELS).shares.max(axis=1).mean()
        for alpha in (1000.0, 1.0, 0.1)
    ]
    assert largest == sorted(largest)
    assert largest[0] < 0.35
    assert largest[-1] > 0.6


def test_balanced_parts_differ_less_in_size() -> None:
    plain, balanced = (
        np.mean(
            [
                np.std([part.size for part in data.dirichlet(LABELS, population=8, alpha=0.3, balanced=on, seed=seed)])
                for seed in range(30)
            ]
        )
        for on in (False, True)
    )
    assert balanced < plain


def test_topping_up_moves_only_what_is_missing() -> None:
    plain = data.dirichlet(LABELS, population=50, alpha=0.05, min_size=0, seed=3)
    topped = data.dirichlet(LABELS, population=50, alpha=0.05, min_size=3, top_up=True, seed=3)
    missing = sum(max(0, 3 - part.size) for part in plain)
    assert min(part.size for part in topped) == 3
    grown = [max(0, new.size - old.size) for old, new in zip(plain, topped, strict=True)]
    assert sum(grown) == missing > 0


def test_sizes_are_met_by_drawing_again() -> None:
    parts = data.dirichlet(LABELS, population=8, alpha=0.5, min_size=10, seed=1)
    assert min(part.size for part in parts) >= 10


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"alpha": 0}, "alpha is 0: give a finite number above 0"),
        ({"alpha": -0.5}, "alpha is -0.5: give a finite number above 0"),
        ({"alpha": float("nan")}, "alpha is nan: give a finite number above 0"),
        ({"alpha": [1.0, 2.0]}, "alpha has shape (2,): give one number, or 8, one per participant"),
        ({"min_size": 51}, "min_size is 51 for 8 participants, but there are 400 rows: lower it to 50 at most"),
        ({"min_size": -1}, "min_size is -1: give an integer of at least 0"),
        ({"alpha": 0.01, "min_size": 40}, "raise alpha, lower min_size or population, or pass top_up=True"),
    ],
)
def test_dirichlet_refuses(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(PartitionError, match=re.escape(says)):
        data.dirichlet(LABELS, **{"population": 8, "alpha": 1.0, "seed": 1} | arguments)


def test_inner_dirichlet_leaves_rows_out_and_has_an_alpha_for_each_class() -> None:
    parts = data.inner_dirichlet(LABELS, sizes=[60, 40], alpha=[1e-6, 1e-6, 1e-6, 1e-6, 10.0], seed=1)
    assert counts_of(parts)[:, 4].tolist() == [60, 40]


def test_inner_dirichlet_gives_what_is_left_to_participants_whose_classes_are_exhausted() -> None:
    parts = data.inner_dirichlet(LABELS, sizes=[200, 200], alpha=[1e-6, 1e-6, 1e-6, 1e-6, 10.0], seed=1)
    assert counts_of(parts).sum(axis=0).tolist() == [40, 60, 80, 100, 120]


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ([300, 101], "sizes add up to 401 rows of 400: lower them"),
        ([300, -1], "sizes[1] is -1: give a number of rows from 0"),
        ([0.5, 0.5], "sizes has dtype float64: give whole numbers of rows"),
        ([], "sizes has shape (0,): give one size per participant"),
    ],
)
def test_inner_dirichlet_refuses(sizes: list[int], says: str) -> None:
    with pytest.raises(PartitionError, match=re.escape(says)):
        data.inner_dirichlet(LABELS, sizes=sizes, alpha=1.0, seed=1)


@pytest.mark.parametrize("assignment", ["random", "deterministic", "first_deterministic"])
def test_participants_hold_exactly_as_many_classes(assignment: Any) -> None:
    parts = data.pathological(LABELS, population=20, classes_per_participant=3, assignment=assignment, seed=1)
    assert classes_held(parts) == {3}
    counts = counts_of(parts)
    assert all(np.ptp(column[column > 0]) <= 1 for column in counts.T)
    if assignment != "random":
        assert (counts[np.arange(20), np.arange(20) % 5] > 0).all()


def test_a_class_that_none_holds_is_named_in_a_warning() -> None:
    with pytest.warns(DataWarning, match="no participant has rows of class 2, 3, 4: raise population") as caught:
        parts = data.pathological(LABELS, population=2, classes_per_participant=1, assignment="deterministic", seed=1)
    assert sum(part.size for part in parts) == 100
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"classes_per_participant": 6},
            "classes_per_participant is 6, but there are 5 classes: lower it to 5 at most",
        ),
        ({"population": 60, "classes_per_participant": 5}, "class 0 has 40 rows for 60 participants: lower population"),
        ({"assignment": "paper"}, "assignment is 'paper': give random, deterministic or first_deterministic"),
    ],
)
def test_pathological_refuses(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(PartitionError, match=re.escape(says)):
        data.pathological(LABELS, **{"population": 4, "classes_per_participant": 2, "seed": 1} | arguments)


def test_shards_lie_in_the_order_of_labels() -> None:
    """400 rows in 20 shards of 20: a shard has one class, for every class has a multiple of 20 rows."""
    parts = data.shards(LABELS, population=10, shards_per_participant=2, seed=1)
    assert classes_held(parts) <= {1, 2}
    assert set(counts_of(parts).ravel().tolist()) <= {0, 20, 40}


def test_the_last_shard_may_be_incomplete() -> None:
    whole, kept = (
        data.shards(LABELS, population=3, shard_size=70, keep_incomplete=keep, seed=1) for keep in (False, True)
    )
    assert [part.size for part in whole] == [140, 140, 70]
    assert sum(part.size for part in kept) == 400


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "neither shards_per_participant nor shard_size is given: give one, or both"),
        ({"shard_size": 101}, "shard_size is 101: 400 rows give 3 shards for 4 participants; lower it to 100 at most"),
        ({"shards_per_participant": 101}, "4 participants need 404 shards of at least one row, but there are 400 rows"),
        ({"shards_per_participant": 2, "shard_size": 51}, "8 shards need 408 rows of 400; lower it to 50 at most"),
        ({"shard_size": 0}, "shard_size is 0: give an integer of at least 1"),
    ],
)
def test_shards_refuses(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(PartitionError, match=re.escape(says)):
        data.shards(LABELS, population=4, seed=1, **arguments)


def test_the_power_law_gives_two_adjacent_classes() -> None:
    weights = data.power_law_weights(population=10, classes=5, seed=1)
    assert [np.flatnonzero(row).tolist() for row in weights[:5]] == [[0, 1], [1, 2], [2, 3], [3, 4], [0, 4]]
    parts = data.distribution(LABELS, weights=weights, min_per_class=4, seed=1)
    assert classes_held(parts) == {2}
    counts = counts_of(parts)
    assert counts[counts > 0].min() >= 4
    assert counts.sum(axis=0).tolist() == [40, 60, 80, 100, 120]


@pytest.mark.parametrize(
    ("weights", "arguments", "says"),
    [
        (np.ones((3, 4)), {}, "weights have shape (3, 4): give one row per participant and 5 columns, one per class"),
        (-np.ones((3, 5)), {}, "weights hold a value that is negative or not finite"),
        (np.eye(4, 5), {}, "no participant has a weight in class 4: give one a weight, or leave its rows out"),
        (
            np.ones((3, 5)),
            {"min_per_class": 14},
            "min_per_class is 14 for 3 participants with class 0, which has 40 rows",
        ),
        (np.full((3, 5), 14), {"as_counts": True}, "weights ask for 42 rows of class 0, which has 40: lower them"),
        (np.full((3, 5), 0.5), {"as_counts": True}, "weights hold fractions: with as_counts=True give whole numbers"),
    ],
)
def test_distribution_refuses(weights: Any, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(PartitionError, match=re.escape(says)):
        data.distribution(LABELS, weights=weights, seed=1, **arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"classes_per_participant": 6}, "classes_per_participant is 6 of 5 classes: lower it to 5 at most"),
        ({"sigma": -1.0}, "sigma is -1.0: give a finite number from 0"),
    ],
)
def test_the_power_law_refuses(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(PartitionError, match=re.escape(says)):
        data.power_law_weights(population=10, classes=5, seed=1, **arguments)
