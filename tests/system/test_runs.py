"""Whole runs: what was computed, what was recorded, and that the same run gives the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atoll.wire.digest import DEFAULT_CHUNK_BYTES
from atoll.wire.encoding import Encoding, as_received, most_elements
from tests.system.conftest import Hire, Serve
from tests.system.operators import FINISHED, job_toml
from tests.system.participants import examples_of, norm, trained
from tests.system.reference import JOB, MODEL, ROUNDS, SIZE, assert_close, averaged, shares_of
from tests.system.servers import Server

pytestmark = pytest.mark.system
EVERYONE = range(SIZE)


def test_a_run_computes_the_weighted_mean_and_records_who_did_what(shared_server: Server, hire: Hire) -> None:
    operator = shared_server.operator
    clients = hire(shared_server).steady(SIZE, "Judging")
    toml = job_toml(
        job={"name": "means", "rounds": 2},
        cohort={"size": SIZE, "quorum": SIZE},
        evaluation={"before_training": True, "final": True, "server": "norm"},
    )
    run = operator.submit(toml, MODEL)
    summary = operator.ended(run)
    assert (summary.status, summary.rounds_released, summary.rounds_total) == (FINISHED, 2, 2)

    first = averaged(MODEL, shares_of(EVERYONE), 0)
    second = averaged(first, shares_of(EVERYONE), 1)
    assert_close(operator.arrays(run, 0), MODEL)
    assert_close(operator.arrays(run, 1), first)
    assert_close(operator.arrays(run), second)

    rounds = operator.rounds(run)
    assert [(seen.round, seen.attempt, seen.kind, seen.phase) for seen in rounds] == [
        (0, 0, "train", "released"),
        (1, 0, "train", "released"),
        (2, 0, "evaluate", "released"),
    ]
    ids = {client.participant: index for index, client in enumerate(clients)}
    for seen in rounds[:2]:
        found = {ids[member.participant]: (member.status, member.weight) for member in seen.members}
        assert found == {index: ("reported", examples_of(index)) for index in EVERYONE}
        assert seen.total_weight == sum(map(examples_of, EVERYONE))
    for client in clients:
        client.wait("reported", run=run, count=3)  # the server may end the run before a client has told of its answer
        assert [event["disposition"] for event in client.events("reported", run=run)] == ["counted"] * 3

    # Clients evaluate what they get, before training and at the end; the operator's plug-in what is released.
    received = (MODEL, first, second)
    for seen, model in zip(rounds, received, strict=True):
        mean = np.mean([np.mean(values, dtype=np.float64) for values in model.values()])
        assert seen.metrics["eval/mean"] == pytest.approx(float(mean), abs=1e-6)
        assert seen.metrics["eval/examples"] == sum(1 + index for index in EVERYONE)
    for seen, model in zip(rounds, (first, second), strict=False):
        assert seen.metrics["server/norm"] == pytest.approx(norm(model)["norm"], rel=1e-6)
        weights = shares_of(EVERYONE)
        expected = sum(index * weight for index, weight in weights.items()) / sum(weights.values())
        assert seen.metrics["train/index"] == pytest.approx(expected)


def test_a_second_run_on_the_same_server_gives_the_same_bits(
    shared_server: Server, reference_model: bytes, hire: Hire
) -> None:
    operator = shared_server.operator
    hire(shared_server).steady(SIZE)
    runs = [operator.submit(JOB, MODEL) for _ in range(2)]  # both at once: participants serve one at a time
    for run in runs:
        operator.finished(run)
        assert operator.model(run) == reference_model
        assert [seen.reported for seen in operator.rounds(run)] == [SIZE] * ROUNDS


def test_two_workers_give_the_same_bits_as_one(serve: Serve, reference_model: bytes, hire: Hire) -> None:
    server = serve("workers", "--workers", "2")
    hire(server).steady(SIZE)
    run = server.operator.submit(JOB, MODEL)
    server.operator.finished(run)
    assert server.operator.model(run) == reference_model


def test_a_participant_that_cannot_evaluate_does_not_hold_up_the_end_of_a_run(
    shared_server: Server, hire: Hire
) -> None:
    """A client of 15 lines only defines ``fit``; jobs end with an evaluation by default."""
    hire(shared_server).steady(2)
    toml = job_toml(job={"name": "mute", "rounds": 1}, cohort={"size": 2}, evaluation={})
    run = shared_server.operator.submit(toml, MODEL)
    shared_server.operator.finished(run)
    assert_close(shared_server.operator.arrays(run), averaged(MODEL, shares_of((0, 1)), 0))


@pytest.mark.parametrize(
    "encoding", [Encoding.INT8_BLOCK, pytest.param(Encoding.INT4_BLOCK, marks=pytest.mark.every_case)]
)
def test_quantised_updates_give_the_mean_of_what_they_decode_to(
    shared_server: Server, hire: Hire, encoding: Encoding
) -> None:
    """An element's block is the same for any cut into chunks, because cuts are rounded to whole blocks."""
    operator = shared_server.operator
    hire(shared_server).steady(SIZE)
    name = encoding.name.lower().removesuffix("_block")
    toml = job_toml(
        job={"name": name, "rounds": 1}, cohort={"size": SIZE, "quorum": SIZE}, aggregation={"encoding": name}
    )
    size = 2 * most_elements(encoding, DEFAULT_CHUNK_BYTES) + 77
    model = {"w": np.random.default_rng(3).standard_normal(size, np.float32), "z": np.ones(5, np.float32)}
    run = operator.submit(toml, model)
    operator.finished(run)
    found = flat_of(operator.arrays(run))

    start, shares = flat_of(model), shares_of(EVERYONE)
    updates = {index: flat_of(trained(model, index, 0)) - start for index in EVERYONE}
    received = {index: as_received(update, encoding) for index, update in updates.items()}
    step = max(float(np.abs(update).max()) for update in updates.values()) / (127 if name == "int8" else 7)
    assert 0 < np.abs(found - (start + mean_of(updates, shares))).max() <= 0.51 * step
    np.testing.assert_allclose(found, start + mean_of(received, shares), rtol=0, atol=2e-6)


def flat_of(model: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    return np.concatenate([values.reshape(-1) for values in model.values()])


def mean_of(updates: Mapping[int, npt.NDArray[Any]], shares: Mapping[int, float]) -> npt.NDArray[np.float64]:
    total = sum(shares.values())
    return np.asarray(sum(share * updates[index].astype(np.float64) for index, share in shares.items()) / total)
