"""Write ``flwr_facts.json``: the results of flwr-datasets 0.6.1 for the same labels.

Needs a separate environment with ``flwr-datasets==0.6.1``; the tests need only the file::

    python tests/simulation/data/reference/make_flwr_facts.py

Facts that hold for every seed (sizes, classes, rows) are stored as they are; for random shares, the mean over ``SEEDS``
seeds with its standard error.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RELEASE = "0.6.1"
FILE = Path(__file__).with_name("flwr_facts.json")
COUNTS = (260, 90, 170, 140, 210, 60, 120, 200, 150, 100)
"""Rows of each class: 1,500 rows, no two classes alike."""
SEEDS = 200
COLUMNS = tuple("abcdefghijk")
USERS = 11


def labels() -> NDArray[np.int64]:
    """The labels of all facts, in an order of their own."""
    return np.random.default_rng(2016).permutation(np.repeat(np.arange(len(COUNTS)), COUNTS))


def users(rows: int) -> list[str]:
    """The user of each row; users first occur in another order than the sorted one."""
    return [f"u{number:02d}" for number in np.random.default_rng(2018).integers(0, USERS, rows)]


def values(rows: int) -> NDArray[np.float64]:
    """A real-valued property, no two alike."""
    return np.power(np.random.default_rng(1861).permutation(rows).astype(np.float64), 1.5)


def partitioner(name: str, **arguments: object) -> Any:
    """A partitioner of flwr-datasets with the data set of all facts."""
    made = getattr(import_module("flwr_datasets.partitioner"), name)(**arguments)
    found = labels()
    columns = {"label": found, "row": np.arange(found.size), "user": users(found.size), "value": values(found.size)}
    made.dataset = import_module("datasets").Dataset.from_dict(columns)
    return made


def rows_of(made: Any) -> list[list[int]]:
    """Rows of each participant."""
    return [list(made.load_partition(number)["row"]) for number in range(made.num_partitions)]


def sizes_of(name: str, **arguments: object) -> list[int]:
    """Sizes of the parts."""
    return [len(part) for part in rows_of(partitioner(name, **arguments))]


def counts_of(name: str, **arguments: object) -> list[list[int]]:
    """Rows of each class for each participant."""
    found = labels()
    return [
        np.bincount(found[part], minlength=len(COUNTS)).tolist() for part in rows_of(partitioner(name, **arguments))
    ]


def figures(counts: Sequence[Sequence[int]]) -> dict[str, float]:
    """What a random partition promises, as numbers.

    ``evenness`` is the mean over classes (0 for one that none holds) of the sum of squared shares of participants;
    ``purity`` the mean over participants of the largest share of a class; ``spread`` the standard deviation of sizes
    over their mean.
    """
    table = np.asarray(counts, np.float64)
    totals, sizes = np.maximum(table.sum(axis=0), 1), table.sum(axis=1)
    return {
        "evenness": float(((table / totals) ** 2).sum(axis=0).mean()),
        "purity": float((table / np.maximum(sizes, 1)[:, None]).max(axis=1).mean()),
        "spread": float(sizes.std() / sizes.mean()),
    }


def averaged(make: Callable[[int], Sequence[Sequence[int]]], seeds: Iterable[int]) -> dict[str, dict[str, float]]:
    """Mean of the figures over seeds, and its standard error."""
    found = [figures(make(seed)) for seed in seeds]
    columns = {name: np.array([one[name] for one in found]) for name in found[0]}
    return {
        name: {"mean": float(column.mean()), "error": float(column.std(ddof=1) / np.sqrt(column.size))}
        for name, column in columns.items()
    }


def random_facts() -> list[dict[str, Any]]:
    """Partitions whose shares are drawn: averages over seeds."""
    cases: list[tuple[str, dict[str, Any]]] = [
        ("Dirichlet", {"num_partitions": 8, "alpha": 0.1, "min_partition_size": 0}),
        ("Dirichlet", {"num_partitions": 8, "alpha": 1.0, "min_partition_size": 0}),
        ("Dirichlet", {"num_partitions": 8, "alpha": 100.0, "min_partition_size": 0}),
        ("Dirichlet", {"num_partitions": 8, "alpha": 0.5, "min_partition_size": 30}),
        ("Dirichlet", {"num_partitions": 8, "alpha": 0.5, "min_partition_size": 0, "self_balancing": True}),
        (
            "Dirichlet",
            {"num_partitions": 4, "alpha": [0.2, 1.0, 5.0, 20.0], "min_partition_size": 0},
        ),
        ("InnerDirichlet", {"partition_sizes": [150] * 10, "alpha": 0.5}),
        ("InnerDirichlet", {"partition_sizes": [50, 100, 200, 400], "alpha": 10.0}),
        ("Pathological", {"num_partitions": 20, "num_classes_per_partition": 3}),
        (
            "Pathological",
            {"num_partitions": 20, "num_classes_per_partition": 3, "class_assignment_mode": "first-deterministic"},
        ),
        ("Shard", {"num_partitions": 10, "num_shards_per_partition": 2}),
    ]
    facts = []
    for name, arguments in cases:

        def make(seed: int, name: str = name, arguments: dict[str, Any] = arguments) -> list[list[int]]:
            return counts_of(f"{name}Partitioner", partition_by="label", seed=seed, **arguments)

        facts.append({"name": name, "arguments": arguments, "figures": averaged(make, range(SEEDS))})
    return facts


def distribution_facts() -> list[dict[str, Any]]:
    """Counts of the distribution partitioner, and its array as weights of participants by classes."""
    facts = []
    for least, population, each in ((0, 10, 2), (3, 20, 3)):
        columns = population * each // len(COUNTS)
        array = np.random.default_rng(least).integers(1, 9, (len(COUNTS), columns))
        weights, taken = np.zeros((population, len(COUNTS)), np.int64), np.zeros(len(COUNTS), np.int64)
        for participant in range(population):
            for label in (participant % len(COUNTS) + np.arange(each)) % len(COUNTS):
                weights[participant, label] = array[label, taken[label]]
                taken[label] += 1
        for rescale in (True, False):
            counts = counts_of(
                "DistributionPartitioner",
                distribution_array=array,
                num_partitions=population,
                num_unique_labels_per_partition=each,
                partition_by="label",
                preassigned_num_samples_per_label=least,
                rescale=rescale,
            )
            facts.append({"weights": weights.tolist(), "least": least, "rescale": rescale, "counts": counts})
    return facts


def shard_facts() -> list[dict[str, Any]]:
    """Sizes of parts made of shards."""
    cases: list[dict[str, Any]] = [
        {"num_shards_per_partition": 2},
        {"num_shards_per_partition": 3, "shard_size": 40},
        {"shard_size": 70},
        {"shard_size": 70, "keep_incomplete_shard": True},
    ]
    return [
        {
            "arguments": case,
            "sizes": sorted(sizes_of("ShardPartitioner", num_partitions=9, partition_by="label", **case)),
        }
        for case in cases
    ]


def group_facts() -> list[dict[str, Any]]:
    """Rows of groups of users."""
    facts = []
    for mode, size, by_id in (
        ("allow-smaller", 4, True),
        ("allow-smaller", 4, False),
        ("allow-smaller", 20, True),
        ("allow-bigger", 4, True),
        ("drop-reminder", 4, False),
        ("strict", 11, True),
    ):
        made = partitioner(
            "GroupedNaturalIdPartitioner", partition_by="user", group_size=size, mode=mode, sort_unique_ids=by_id
        )
        facts.append({"mode": mode, "size": size, "sorted": by_id, "groups": made_groups(made)})
    return facts


def made_groups(made: Any) -> list[list[str]]:
    """Users of each group, sorted."""
    found = users(labels().size)
    return [sorted({found[row] for row in part}) for part in rows_of(made)]


def continuous_facts() -> list[dict[str, Any]]:
    """Sizes and mean place (by value, from 0 to 1) of each part."""
    place = np.argsort(np.argsort(values(labels().size))) / labels().size
    facts = []
    for strictness in (0.0, 0.5, 0.9, 1.0):
        runs = [
            rows_of(
                partitioner(
                    "ContinuousPartitioner", num_partitions=7, partition_by="value", strictness=strictness, seed=seed
                )
            )
            for seed in range(20)
        ]
        facts.append(
            {
                "strictness": strictness,
                "sizes": [len(part) for part in runs[0]],
                "places": np.mean([[place[part].mean() for part in parts] for parts in runs], axis=0).tolist(),
            }
        )
    return facts


def vertical_facts() -> list[dict[str, Any]]:
    """Names of the columns of each part."""
    cases: list[dict[str, Any]] = [
        {"num_partitions": 3},
        {"num_partitions": 3, "active_party_columns": ["c"], "active_party_columns_mode": "add_to_first"},
        {"num_partitions": 4, "active_party_columns": ["c", "k"], "active_party_columns_mode": "add_to_all"},
        {"num_partitions": 2, "active_party_columns": ["k"], "active_party_columns_mode": "create_as_first"},
        {"num_partitions": 2, "active_party_columns": ["k"], "active_party_columns_mode": "create_as_last"},
        {
            "num_partitions": 3,
            "active_party_columns": ["k"],
            "active_party_columns_mode": 1,
            "shared_columns": ["a"],
            "drop_columns": ["b", "d"],
        },
        {"partition_sizes": [2, 5, 4]},
        {"partition_sizes": [3, 0, 5], "active_party_columns": ["k"], "shared_columns": ["a"], "drop_columns": ["e"]},
        {"partition_sizes": [0.2, 0.5, 0.3]},
    ]
    dataset = import_module("datasets").Dataset.from_dict({name: [0] for name in COLUMNS})
    facts = []
    for case in cases:
        name = "VerticalSizePartitioner" if "partition_sizes" in case else "VerticalEvenPartitioner"
        made = getattr(import_module("flwr_datasets.partitioner"), name)(shuffle=False, **case)
        made.dataset = dataset
        parts = [made.load_partition(number).column_names for number in range(made.num_partitions)]
        facts.append({"arguments": case, "columns": parts})
    return facts


def facts() -> dict[str, Any]:
    """All facts."""
    return {
        "release": version("flwr-datasets"),
        "labels": "".join(map(str, labels())),
        "sizes": {
            name: [sizes_of(f"{name}Partitioner", num_partitions=population) for population in (1, 4, 7)]
            for name in ("Iid", "Linear", "Square", "Exponential")
        },
        "given_sizes": sizes_of("SizePartitioner", partition_sizes=[700, 1, 99]),
        "deterministic": counts_of(
            "PathologicalPartitioner",
            num_partitions=23,
            partition_by="label",
            num_classes_per_partition=3,
            class_assignment_mode="deterministic",
        ),
        "distribution": distribution_facts(),
        "shards": shard_facts(),
        "users": [sorted(part) for part in rows_of(partitioner("NaturalIdPartitioner", partition_by="user"))],
        "groups": group_facts(),
        "continuous": continuous_facts(),
        "vertical": vertical_facts(),
        "random": random_facts(),
    }


if __name__ == "__main__":
    if version("flwr-datasets") != RELEASE:
        raise SystemExit(f"flwr-datasets is {version('flwr-datasets')}: install {RELEASE}")
    warnings.simplefilter("ignore")
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    FILE.write_text(json.dumps(facts()) + "\n", encoding="utf-8")
