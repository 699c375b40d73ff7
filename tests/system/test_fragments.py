"""Rounds over fragments of the model, with real servers and clients: streaming DiLoCo (Douillard et al. 2025,
arXiv:2501.18512, section 2.2) with Nesterov's momentum outside equals plain arithmetic to the last bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atoll.wire.encoding import Encoding, payload_bytes
from tests.system.conftest import Hire, Serve
from tests.system.operators import FINISHED, Operator, job_toml
from tests.system.participants import examples_of, stepped
from tests.system.reference import SIZE
from tests.system.servers import Server

pytestmark = pytest.mark.system

Arrays = dict[str, npt.NDArray[Any]]
LR, MOMENTUM = 0.7, 0.9
_RANDOM = np.random.default_rng(11)
MODEL: Arrays = {
    "wide": _RANDOM.standard_normal((300, 40)).astype(np.float32),
    "bias": _RANDOM.standard_normal(100),
    "deep": _RANDOM.standard_normal((90, 100)).astype(np.float32),
    "scale": _RANDOM.standard_normal(7).astype(np.float32),
    "head": _RANDOM.standard_normal(3000).astype(np.float32),
}
FRAGMENTS = (("wide",), ("bias",), ("deep", "scale", "head"))
"""The second comes along with its report, the others are uploaded."""
ROUNDS = 7  # each fragment twice, and the first once more
TRAINED = (0, 1, 3, 4, 6, 7, 9)  # every third round evaluates
JOB = job_toml(
    job={"name": "in turn", "rounds": ROUNDS},
    cohort={"size": SIZE, "quorum": SIZE},
    straggler={"report_window_s": 120},
    aggregation={"fragments": len(FRAGMENTS)},
    optimiser={"name": "fedavgm", "nesterov": True, "momentum": MOMENTUM, "lr": LR},
    evaluation={"before_training": False, "every": 2, "final": False},
)
MOMENTS = (
    "before reported:5",  # of the second round: the upload is durable, its report is not
    "after aggregated:1",  # the next model lies on disk, and is made again to be charged
)


def models() -> Iterator[Arrays]:
    """The model after each round: FedAvgM with Nesterov's momentum on the round's fragment, nothing elsewhere."""
    weights, momentum = dict(MODEL), {name: np.zeros(array.shape, np.float32) for name, array in MODEL.items()}
    shares = {index: examples_of(index) for index in range(SIZE)}
    for turn, number in enumerate(TRAINED):
        steps = {index: stepped(weights, index, number) for index in shares}
        for name in FRAGMENTS[turn % len(FRAGMENTS)]:
            summed = sum(share * steps[index][name].astype(np.float64) for index, share in shares.items())
            mean = np.asarray(summed) / sum(shares.values())
            gathered = momentum[name].astype(np.float64) * MOMENTUM + mean
            moved = (gathered * MOMENTUM + mean) * LR + weights[name].astype(np.float64)
            momentum[name] = gathered.astype(np.float32)
            weights = {**weights, name: moved.astype(weights[name].dtype)}
        yield weights


def assert_same_bits(found: Mapping[str, npt.NDArray[Any]], expected: Arrays) -> None:
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        assert found[name].tobytes() == values.tobytes(), name


def assert_shown(operator: Operator, run: str) -> None:
    """Every attempt says which fragment it was over, and every update was as large as that."""
    for seen in operator.rounds(run):
        if seen.kind == "evaluate":
            assert (seen.HasField("fragment"), seen.fragments) == (False, 1)
            continue
        turn = TRAINED.index(seen.round)
        assert (seen.fragment, seen.fragments) == (turn % 3, 3)
        sizes = {4 * sum(MODEL[name].size for name in FRAGMENTS[turn % 3])}
        assert {member.payload_bytes for member in seen.members} == sizes


def test_each_round_moves_its_fragment_by_plain_arithmetic(shared_server: Server, hire: Hire) -> None:
    operator = shared_server.operator
    hire(shared_server).steady(SIZE, "Exact")
    run = operator.submit(JOB, MODEL)
    assert operator.ended(run).status == FINISHED
    expected = list(models())
    for version in range(ROUNDS - 2, ROUNDS + 1):  # older ones are not kept
        assert_same_bits(operator.arrays(run, version), expected[version - 1])
    assert_shown(operator, run)
    assert [(seen.round, seen.kind) for seen in operator.rounds(run)] == [
        (number, "train" if number in TRAINED else "evaluate") for number in range(10)
    ]


@pytest.mark.parametrize("encoding", ["int8", "int4"])
def test_quantised_updates_of_a_fragment_leave_the_rest_as_it_is(
    shared_server: Server, hire: Hire, encoding: str
) -> None:
    """The last three models are kept: each differs from the one before in its round's fragment alone."""
    operator = shared_server.operator
    hire(shared_server).steady(SIZE, "Exact")
    run = operator.submit(JOB.replace("[aggregation]", f'[aggregation]\nencoding = "{encoding}"'), MODEL)
    assert operator.ended(run).status == FINISHED
    kept = {version: operator.arrays(run, version) for version in range(ROUNDS - 2, ROUNDS + 1)}
    for version in range(ROUNDS - 1, ROUNDS + 1):
        moved = {name for name in MODEL if kept[version][name].tobytes() != kept[version - 1][name].tobytes()}
        assert moved == set(FRAGMENTS[(version - 1) % 3])
    for seen in operator.rounds(run):
        if seen.kind == "train":
            elements = sum(MODEL[name].size for name in FRAGMENTS[seen.fragment])
            sizes = {member.payload_bytes for member in seen.members}
            assert sizes == {payload_bytes(Encoding[f"{encoding.upper()}_BLOCK"], elements)}


def test_two_workers_give_the_same_bits(serve: Serve, hire: Hire) -> None:
    server = serve("shared-turns", "--workers", "2")
    hire(server).steady(SIZE, "Exact")
    run = server.operator.submit(JOB, MODEL)
    server.operator.finished(run)
    assert_same_bits(server.operator.arrays(run), list(models())[-1])


def test_a_server_that_is_killed_in_a_round_goes_on_with_its_fragment(serve: Serve, hire: Hire) -> None:
    server = serve("mortal-turns")
    crew = hire(server, eager=True)
    clients = [crew.add("Exact", index=index) for index in range(SIZE)]
    run = server.operator.submit(JOB, MODEL)
    server.kill()
    server.start(dies=MOMENTS[0])
    for client in clients:
        client.start()
    server.died()
    for moment in MOMENTS[1:]:
        server.start(dies=moment)
        server.died()
    server.start()
    server.operator.finished(run)
    assert_same_bits(server.operator.arrays(run), list(models())[-1])
    assert_shown(server.operator, run)
    assert {seen.attempt for seen in server.operator.rounds(run)} == {0}
