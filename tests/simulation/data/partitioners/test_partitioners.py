"""What holds for every partitioner: index sets, the same for the same seed, no row twice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.simulation import data
from atoll.simulation.data import PartitionError
from tests.properties import examples

LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(5), [40, 60, 80, 100, 120]))
ROWS = LABELS.size
Make = Callable[[int], data.Parts]
SEEDED: dict[str, Make] = {
    "iid": lambda seed: data.iid(ROWS, population=7, seed=seed),
    "by_sizes": lambda seed: data.by_sizes(ROWS, sizes=[100, 0, 300], seed=seed),
    "linear_sizes": lambda seed: data.linear_sizes(ROWS, population=7, seed=seed),
    "square_sizes": lambda seed: data.square_sizes(ROWS, population=7, seed=seed),
    "exponential_sizes": lambda seed: data.exponential_sizes(ROWS, population=4, seed=seed),
    "dirichlet": lambda seed: data.dirichlet(LABELS, population=7, alpha=0.5, seed=seed),
    "dirichlet balanced": lambda seed: data.dirichlet(LABELS, population=7, alpha=0.5, balanced=True, seed=seed),
    "dirichlet top_up": lambda seed: data.dirichlet(
        LABELS, population=50, alpha=0.05, min_size=8, top_up=True, seed=seed
    ),
    "inner_dirichlet": lambda seed: data.inner_dirichlet(LABELS, sizes=[0, 50, 150, 200], alpha=0.2, seed=seed),
    "distribution": lambda seed: data.distribution(
        LABELS, weights=data.power_law_weights(population=10, classes=5, seed=2), seed=seed
    ),
    "pathological": lambda seed: data.pathological(LABELS, population=20, classes_per_participant=3, seed=seed),
    "shards": lambda seed: data.shards(LABELS, population=10, shards_per_participant=2, seed=seed),
    "continuous": lambda seed: data.continuous(np.arange(ROWS), population=7, strictness=0.5, seed=seed),
}


@pytest.mark.parametrize("name", SEEDED)
def test_every_row_has_one_owner_and_the_seed_decides_which(name: str) -> None:
    parts, again, other = SEEDED[name](4), SEEDED[name](4), SEEDED[name](5)
    assert all(part.dtype == np.int64 and part.ndim == 1 for part in parts)
    held = np.concatenate(parts)
    assert np.array_equal(np.sort(held), np.arange(ROWS))
    assert all(np.array_equal(one, two) for one, two in zip(parts, again, strict=True))
    assert not all(np.array_equal(one, two) for one, two in zip(parts, other, strict=True))


@pytest.mark.parametrize("name", SEEDED)
def test_rows_of_a_part_are_in_random_order(name: str) -> None:
    assert any((np.diff(part) < 0).any() for part in SEEDED[name](4))


def test_labels_may_be_texts() -> None:
    texts = np.array(list("abcde"))[LABELS]
    parts = data.dirichlet(texts, population=7, alpha=0.5, seed=4)
    assert all(np.array_equal(*pair) for pair in zip(parts, SEEDED["dirichlet"](4), strict=True))


@pytest.mark.parametrize("seed", [-1, 1.5, True, "1", None])
@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_is_an_integer_from_0(name: str, seed: int) -> None:
    with pytest.raises(PartitionError, match=r"seed is .*: give an integer of at least 0"):
        SEEDED[name](seed)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([], "labels is empty: there is nothing to divide"),
        ([[1, 2], [3, 4]], r"labels has shape \(2, 2\): give one value per row"),
        ([0.5, 1.5], r"labels has dtype float64: give integers or texts; continuous\(\) divides by"),
    ],
)
def test_labels_are_integers_or_texts(labels: list[object], says: str) -> None:
    with pytest.raises(PartitionError, match=says):
        data.dirichlet(np.array(labels), population=1, alpha=1, seed=1)


@pytest.mark.parametrize("population", [0, -3, 2.0])
def test_a_population_is_an_integer_from_1(population: int) -> None:
    with pytest.raises(PartitionError, match=r"population is .*: give an integer of at least 1"):
        data.iid(10, population=population, seed=1)


def test_a_population_is_no_larger_than_the_rows() -> None:
    with pytest.raises(PartitionError, match="population is 11 for 10 rows: lower it to 10 at most"):
        data.iid(10, population=11, seed=1)


@settings(max_examples=examples(60), deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    alpha=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**32),
    share=st.lists(st.integers(0, 12), min_size=1, max_size=5),
)
def test_an_inner_dirichlet_fills_every_size(labels: list[int], alpha: float, seed: int, share: list[int]) -> None:
    sizes = [min(size, len(labels) // len(share)) for size in share]
    parts = data.inner_dirichlet(labels, sizes=sizes, alpha=alpha, seed=seed)
    assert [part.size for part in parts] == sizes
    held = np.concatenate(parts)
    assert np.unique(held).size == held.size
