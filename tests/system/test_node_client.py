"""A client in Node, which shares no code with the SDK, in a federation with SDK clients on a real server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conformance import node_client, plus_one
from tests.system.operators import Arrays, job_toml
from tests.system.processes import ATOLL, Nursery
from tests.system.servers import Server

pytestmark = pytest.mark.system

SMALL = {"w": np.arange(8, dtype=np.float32)}
LARGE = {"w": np.arange(700_000, dtype=np.float32), "b": np.zeros(3, np.float32)}
"""More than one chunk up and down."""


@node_client.needed
@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["inline", "chunks"])
def test_clients_in_two_languages_train_one_model(
    shared_server: Server, processes: Nursery, tmp_path: Path, model: Arrays
) -> None:
    operator = shared_server.operator
    ours, foreign = operator.tokens(2)
    processes.start(node_client.command("client.js", str(tmp_path / "node")), "node", env={"ATOLL_JOIN_TOKEN": foreign})
    exercise = f"{plus_one.__file__}:PlusOne"
    processes.start(
        (*ATOLL, "client", "start", exercise, "--state", str(tmp_path / "ours")), "ours", env={"ATOLL_JOIN_TOKEN": ours}
    )
    toml = job_toml(job={"name": "two languages", "rounds": 3}, cohort={"size": 2, "quorum": 2, "min_available": 2})
    run = operator.submit(toml, model)
    operator.finished(run)
    for name, weights in operator.arrays(run).items():
        np.testing.assert_allclose(weights, model[name] + 3, rtol=0, atol=1e-3)
    members = [member.status for summary in operator.rounds(run) for member in summary.members]
    assert members == ["reported"] * 6
