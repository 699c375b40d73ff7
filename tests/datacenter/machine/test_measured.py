"""A whole measurement, on ranks that act as two nodes of two ranks."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from atoll.datacenter.machine import Link
from atoll.datacenter.machine.compute import measure_matmul, measure_memory
from atoll.datacenter.machine.cost import COLLECTIVES
from atoll.datacenter.machine.measured import Extent, measure_machine
from atoll.datacenter.mesh import join_world
from tests.datacenter.ranks import run_ranks
from tests.patience import WAIT_S

TINY = Extent(4096, (32,), 1 << 16)
CPU = torch.device("cpu")


def measured(ranks_per_node: int) -> dict[str, Any]:
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks_per_node)
    calls: list[int] = []
    with join_world(WAIT_S) as world:
        found = measure_machine(
            world,
            TINY,
            lambda _, done, total: calls.append(total - done),
            inter=Link(alpha_s=1e-5, bytes_per_s=1e9) if ranks_per_node > 1 else None,
        )
    return {
        "intra": [[point.collective, point.ranks] for point in found.intra],
        "inter": [[point.collective, point.ranks] for point in found.inter],
        "rates": found.rates.model_dump(exclude={"source"}),
        "source": found.rates.source,
        "left": calls[-1],
    }


def test_links_within_and_between_nodes_are_measured_apart() -> None:
    first, *others = run_ranks(measured, 4, 2)
    wanted = [[name, 2] for name in COLLECTIVES for _ in range(2)]
    assert first["intra"] == first["inter"] == wanted
    assert first["left"] == 1, "the last piece was announced, and as many as were promised"
    assert first["rates"]["ranks_per_node"] == 2
    assert first["rates"]["intra"] != first["rates"]["inter"]
    assert "4 ranks on 2 nodes, gloo" in first["source"]
    assert all(other["rates"] == first["rates"] for other in others), "every rank has the slowest rank's figures"


def test_on_one_node_the_link_between_nodes_is_the_one_given() -> None:
    found = run_ranks(measured, 2, 2)[0]
    assert found["inter"] == []
    assert found["rates"]["inter"] == {"alpha_s": 1e-5, "bytes_per_s": 1e9}
    assert found["source"].endswith("links between nodes as given, not measured")


def test_matrix_products_and_memory() -> None:
    for number_format in ("float32", "bfloat16"):
        found = measure_matmul(CPU, number_format, 32)
        assert found is not None
        assert found.flops_per_s == pytest.approx(2 * 32**3 / found.timing.seconds)
    assert measure_matmul(CPU, "float8", 32) is None
    assert measure_matmul(CPU, "tfloat32", 32) is None
    copied = measure_memory(CPU, 1 << 16)
    assert copied.bytes_per_s == pytest.approx(2 * (1 << 16) / copied.timing.seconds)
    assert torch.get_float32_matmul_precision() == "highest"
