from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn import datasets

from atoll.server.demo.data import MIN_EXAMPLES, Digits, load_digits, split
from atoll.server.errors import InvalidRequestError


@pytest.fixture(scope="module")
def digits() -> Digits:
    return load_digits()


def rows(part: Digits) -> set[bytes]:
    return {image.tobytes() for image in part.images}


def test_the_digits_are_there(digits: Digits) -> None:
    assert digits.images.shape == (1797, 64)
    assert [str(array.dtype) for array in (digits.images, digits.labels)] == ["float32", "int64"]
    assert (digits.images.min(), digits.images.max()) == (-1.0, 1.0)


def test_they_are_those_of_scikit_learn(digits: Digits) -> None:
    pixels, labels = datasets.load_digits(return_X_y=True)
    assert np.array_equal(digits.images, np.asarray(pixels / 8.0 - 1.0, np.float32))
    assert np.array_equal(digits.labels, labels)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.server.demo.data.find_spec", lambda _: None)
    with pytest.raises(InvalidRequestError, match="no module 'sklearn'") as refused:
        load_digits()
    assert "[demo]" in refused.value.detail.remedy


def test_a_scikit_learn_that_keeps_them_elsewhere_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.server.demo.data._DIGITS", Path("elsewhere.csv.gz"))
    with pytest.raises(InvalidRequestError, match=r"sklearn/elsewhere\.csv\.gz: this scikit-learn has no"):
        load_digits()


@pytest.mark.parametrize("clients", [1, 8, 64])
def test_every_example_goes_to_exactly_one_place(digits: Digits, clients: int) -> None:
    shards = split(digits, clients, alpha=0.5, seed=3)
    parts = [*shards.clients, shards.held_out]
    assert len(shards.clients) == clients
    assert sum(map(len, parts)) == len(digits)
    assert set().union(*map(rows, parts)) == rows(digits)
    assert min(map(len, shards.clients)) >= MIN_EXAMPLES


def test_a_fifth_of_each_class_is_held_out(digits: Digits) -> None:
    held_out = split(digits, 8, alpha=0.5, seed=3).held_out
    shares = np.bincount(held_out.labels) / np.bincount(digits.labels)
    assert np.allclose(shares, 0.2, atol=0.01)


def test_small_alpha_makes_clients_differ(digits: Digits) -> None:
    def spread(alpha: float) -> float:
        shards = split(digits, 8, alpha, seed=3)
        shares = [np.bincount(part.labels, minlength=10) / len(part) for part in shards.clients]
        return float(np.std(shares, axis=0).mean())

    assert spread(0.1) > 2 * spread(100.0)


def test_the_seed_decides(digits: Digits) -> None:
    first, again, other = (split(digits, 4, 0.5, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.clients[2].images, again.clients[2].images)
    assert not np.array_equal(first.held_out.images, other.held_out.images)


def test_more_clients_than_there_are_examples_for(digits: Digits) -> None:
    with pytest.raises(InvalidRequestError, match="1000 clients: there are examples for 1 to 143"):
        split(digits, 1000, 0.5, seed=1)


def test_shards_are_written_without_pickles(digits: Digits, tmp_path: Path) -> None:
    path = tmp_path / "shard.npz"
    digits.at(np.arange(5)).write(path, seed=7)
    with np.load(path, allow_pickle=False) as found:
        assert found["images"].shape == (5, 64)
        assert int(found["seed"]) == 7


def test_with_fewer_examples_each_there_are_more_clients() -> None:
    shards = split(load_digits(), 200, 0.5, seed=1, least=5)
    assert min(map(len, shards.clients)) >= 5
    assert sum(map(len, shards.clients)) + len(shards.held_out) == 1797
