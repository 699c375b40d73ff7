"""The run that the tests of determinism repeat, and the plain arithmetic that a run of means must agree with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.wire.digest import DEFAULT_CHUNK_BYTES
from tests.system.clients import Client
from tests.system.operators import Operator, job_toml
from tests.system.participants import examples_of, trained

SIZE = 3
ROUNDS = 5
_RANDOM = np.random.default_rng(7)
MODEL: dict[str, npt.NDArray[Any]] = {
    "w": _RANDOM.standard_normal((300, 7)).astype(np.float32),
    "b": _RANDOM.standard_normal(11),
    "z": _RANDOM.standard_normal(5).astype(np.float32),
}
JOB = job_toml(
    job={"name": "reference", "rounds": ROUNDS},
    cohort={"size": SIZE, "quorum": SIZE},
    straggler={"report_window_s": 120},
    optimiser={"name": "fedadam", "lr": 0.05},
)
"""Its result depends on every bit of every round: the server optimiser keeps state, each round starts where the last
one ended, and all participants are in every round."""

KILLED_ROUNDS = 3
KILLED_MODEL: dict[str, npt.NDArray[Any]] = {
    "w": _RANDOM.standard_normal(2 * DEFAULT_CHUNK_BYTES // 4).astype(np.float32),
    "b": _RANDOM.standard_normal(501),
}
KILLED_JOB = job_toml(
    job={"name": "killed", "rounds": KILLED_ROUNDS},
    cohort={"size": SIZE, "quorum": SIZE},
    straggler={"report_window_s": 300, "retry_delay_s": 0.5},
    optimiser={"name": "fedadam", "lr": 0.05},
)
"""The job of the tests of random kills: like the reference, but every update takes three chunks."""

LARGE_CHUNKS = 3
LARGE_MODEL: dict[str, npt.NDArray[Any]] = {
    "w": np.zeros(LARGE_CHUNKS * DEFAULT_CHUNK_BYTES // 4 - 1000, np.float32),
    "z": np.zeros(5, np.float32),
}
"""A model whose update takes several chunks, the last of which holds the last tensor."""
LARGE_JOB = job_toml(
    job={"name": "large", "rounds": 1}, cohort={"size": SIZE, "quorum": SIZE}, straggler={"report_window_s": 120}
)


def assert_undisturbed(operator: Operator, run: str, clients: Sequence[Client], rounds: int) -> None:
    """Each round was released at its first attempt, from one report of each, and no client trained twice for it.

    A server that counted a report may be killed before it answers, and the client sends the report again. For the last
    round, the client may learn that the run has ended before it gets the answer.
    """
    for client in clients:
        client.wait("reported", "stopped", count=rounds)
    found = operator.rounds(run)
    assert [(seen.round, seen.attempt, seen.phase) for seen in found] == [(at, 0, "released") for at in range(rounds)]
    for seen in found:
        assert [member.status for member in seen.members] == ["reported"] * SIZE
        assert sorted(member.weight for member in seen.members) == [examples_of(index) for index in range(SIZE)]
        assert seen.total_weight == sum(map(examples_of, range(SIZE)))
    for client in clients:
        assert client.process.running
        assert [event["round"] for event in client.events("trained")] == list(range(rounds))
        assert {event["disposition"] for event in client.events("reported")} == {"counted"}
        assert [event["round"] for event in client.events("reported", "stopped")] == list(range(rounds))
        assert all(event["reason"] == "the run has ended" for event in client.events("stopped"))


def averaged(model: Mapping[str, npt.NDArray[Any]], shares: Mapping[int, float], round_: int) -> dict[str, Any]:
    """FedAvg in float64: the model plus the mean of the updates of the participants (index → weight)."""
    locals_ = {index: trained(model, index, round_) for index in shares}
    total = sum(shares.values())
    means = {
        name: sum(share * (locals_[index][name].astype(np.float64) - weights) for index, share in shares.items())
        / total
        for name, weights in model.items()
    }
    return {name: (weights + means[name]).astype(weights.dtype) for name, weights in model.items()}


def shares_of(indices: Sequence[int]) -> dict[int, float]:
    """Each participant with its examples."""
    return {index: float(examples_of(index)) for index in indices}


def assert_close(found: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, npt.NDArray[Any]]) -> None:
    """Equal up to float32's resolution, tensor by tensor."""
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_allclose(found[name], values, rtol=0, atol=2e-6, err_msg=name)
