"""Each partitioner keeps the promises of its counterpart in flwr-datasets 0.6.1 on the same labels.

``reference/flwr_facts.json`` holds the results of flwr-datasets; ``reference/make_flwr_facts.py`` wrote it.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from atoll.simulation import data
from tests.simulation.data.reference import make_flwr_facts as reference

FACTS: dict[str, Any] = json.loads(reference.FILE.read_text(encoding="utf-8"))
LABELS = np.array(list(map(int, FACTS["labels"])))
ROWS = LABELS.size
SIZED = {
    "Iid": data.iid,
    "Linear": data.linear_sizes,
    "Square": data.square_sizes,
    "Exponential": data.exponential_sizes,
}
ASSIGNMENTS: dict[str, Any] = {"first-deterministic": "first_deterministic", "random": "random"}
REMAINDERS: dict[str, Any] = {
    "allow-smaller": "smaller",
    "allow-bigger": "bigger",
    "drop-reminder": "drop",
    "strict": "error",
}
PLACES: dict[Any, Any] = {
    "add_to_first": "first",
    "add_to_last": "last",
    "add_to_all": "all",
    "create_as_first": "new_first",
    "create_as_last": "new_last",
}


def counts_of(parts: data.Parts) -> list[list[int]]:
    return [np.bincount(LABELS[part], minlength=len(reference.COUNTS)).tolist() for part in parts]


def test_the_facts_are_of_the_release_and_of_these_labels() -> None:
    assert FACTS["release"] == reference.RELEASE
    assert np.array_equal(reference.labels(), LABELS)


@pytest.mark.parametrize("name", SIZED)
def test_sizes_are_the_same(name: str) -> None:
    for population, sizes in zip((1, 4, 7), FACTS["sizes"][name], strict=True):
        parts = SIZED[name](ROWS, population=population, seed=3)
        assert [part.size for part in parts] == sizes


def test_given_sizes_are_the_same() -> None:
    assert [part.size for part in data.by_sizes(ROWS, sizes=[700, 1, 99], seed=3)] == FACTS["given_sizes"]


def test_deterministic_classes_are_the_same() -> None:
    parts = data.pathological(LABELS, population=23, classes_per_participant=3, assignment="deterministic", seed=3)
    assert counts_of(parts) == FACTS["deterministic"]


@pytest.mark.parametrize("fact", FACTS["distribution"], ids=lambda fact: f"{fact['least']}-{fact['rescale']}")
def test_given_distributions_are_the_same_to_within_the_rounding(fact: dict[str, Any]) -> None:
    """flwr-datasets gives all rows that rounding leaves over in a class to one participant, drawn at random."""
    weights, theirs = np.array(fact["weights"]), np.array(fact["counts"])
    parts = data.distribution(
        LABELS, weights=weights, min_per_class=fact["least"] * fact["rescale"], as_counts=not fact["rescale"], seed=3
    )
    ours = np.array(counts_of(parts))
    assert np.array_equal(ours.sum(axis=0), theirs.sum(axis=0))
    if not fact["rescale"]:
        assert np.array_equal(ours, theirs)
    assert np.array_equal(ours > 0, theirs > 0)
    difference = ours - theirs
    assert difference.max() <= 1
    assert ((difference < 0).sum(axis=0) <= 1).all()


@pytest.mark.parametrize("fact", FACTS["shards"], ids=lambda fact: "-".join(fact["arguments"]))
def test_sizes_of_shards_are_the_same(fact: dict[str, Any]) -> None:
    names = {"num_shards_per_partition": "shards_per_participant", "keep_incomplete_shard": "keep_incomplete"}
    arguments = {names.get(name, name): value for name, value in fact["arguments"].items()}
    ours = sorted(part.size for part in data.shards(LABELS, population=9, seed=3, **arguments))
    if "keep_incomplete_shard" not in fact["arguments"]:
        assert ours == fact["sizes"]
        return
    # One part draws the incomplete shard of 1,500 % 70 rows; the seed decides which.
    assert sum(ours) == sum(fact["sizes"]) == ROWS
    assert {size % 70 for size in ours} == {size % 70 for size in fact["sizes"]} == {0, ROWS % 70}


def test_rows_of_natural_ids_are_the_same() -> None:
    parts = data.natural_ids(reference.users(ROWS))
    assert [part.tolist() for part in parts] == FACTS["users"]


@pytest.mark.parametrize("fact", FACTS["groups"], ids=lambda fact: f"{fact['mode']}-{fact['size']}-{fact['sorted']}")
def test_groups_of_natural_ids_are_the_same(fact: dict[str, Any]) -> None:
    users = np.array(reference.users(ROWS))
    parts = data.grouped_ids(
        users, group_size=fact["size"], remainder=REMAINDERS[fact["mode"]], by_appearance=not fact["sorted"]
    )
    assert [sorted(set(users[part].tolist())) for part in parts] == fact["groups"]


@pytest.mark.parametrize("fact", FACTS["continuous"], ids=lambda fact: str(fact["strictness"]))
def test_parts_by_a_property_lie_at_the_same_places(fact: dict[str, Any]) -> None:
    values = reference.values(ROWS)
    place = np.argsort(np.argsort(values)) / ROWS
    runs = [data.continuous(values, population=7, strictness=fact["strictness"], seed=seed) for seed in range(20)]
    assert [part.size for part in runs[0]] == fact["sizes"]
    ours = np.mean([[place[part].mean() for part in parts] for parts in runs], axis=0)
    # The mean place of one part of 214 rows has a standard error of 0.29 / sqrt(20 x 214) = 0.0044 at most.
    assert np.abs(ours - fact["places"]).max() < 5 * 0.0044 * 2**0.5


@pytest.mark.parametrize("fact", FACTS["vertical"], ids=lambda fact: "-".join(map(str, fact["arguments"].values())))
def test_columns_are_the_same(fact: dict[str, Any]) -> None:
    theirs = fact["arguments"]
    special: dict[str, Any] = {
        "active": theirs.get("active_party_columns", []),
        "shared": theirs.get("shared_columns", []),
        "dropped": theirs.get("drop_columns", []),
    }
    mode = theirs.get("active_party_columns_mode", "add_to_last")
    special["active_to"] = PLACES.get(mode, mode)
    if "partition_sizes" in theirs:
        parts = data.vertical_sizes(reference.COLUMNS, sizes=theirs["partition_sizes"], **special)
    else:
        parts = data.vertical_even(reference.COLUMNS, population=theirs["num_partitions"], **special)
    assert [[reference.COLUMNS[at] for at in part] for part in parts] == fact["columns"]


def drawn(name: str, theirs: dict[str, Any], seed: int) -> data.Parts:
    """Our partition for arguments of flwr-datasets."""
    match name:
        case "Dirichlet":
            return data.dirichlet(
                LABELS,
                population=theirs["num_partitions"],
                alpha=theirs["alpha"],
                min_size=theirs["min_partition_size"],
                balanced=theirs.get("self_balancing", False),
                seed=seed,
            )
        case "InnerDirichlet":
            return data.inner_dirichlet(LABELS, sizes=theirs["partition_sizes"], alpha=theirs["alpha"], seed=seed)
        case "Pathological":
            return data.pathological(
                LABELS,
                population=theirs["num_partitions"],
                classes_per_participant=theirs["num_classes_per_partition"],
                assignment=ASSIGNMENTS[theirs.get("class_assignment_mode", "random")],
                seed=seed,
            )
    assert name == "Shard"
    each = theirs["num_shards_per_partition"]
    return data.shards(LABELS, population=theirs["num_partitions"], shards_per_participant=each, seed=seed)


@pytest.mark.filterwarnings("ignore::atoll.simulation.data.DataWarning")
@pytest.mark.parametrize("fact", FACTS["random"], ids=lambda fact: f"{fact['name']}-{list(fact['arguments'].values())}")
def test_drawn_shares_are_alike(fact: dict[str, Any]) -> None:
    """The means over ``SEEDS`` seeds differ by at most five standard errors of their difference."""
    seeds = range(1000, 1000 + reference.SEEDS)
    ours = reference.averaged(lambda seed: counts_of(drawn(fact["name"], fact["arguments"], seed)), seeds)
    for name, theirs in fact["figures"].items():
        error = float(np.hypot(ours[name]["error"], theirs["error"]))
        assert abs(ours[name]["mean"] - theirs["mean"]) <= 5 * error + 1e-9, (name, ours[name], theirs)
