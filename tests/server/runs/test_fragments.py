"""Rounds over fragments of the model (Douillard et al. 2025, arXiv:2501.18512), in a run of the daemon."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.stores import runs
from atoll.wire.v1 import participation_pb2
from tests.server.runs.federation import LAYOUT, Client, Federation, Key, Values, job, opened

pytestmark = pytest.mark.slow

MOMENTUM = b'[optimiser]\nname = "fedavgm"\nmomentum = 0.5\nnesterov = true\nlr = 0.25\n'
PARTS = ((0, 20), (20, 4))  # the elements of w and of b
TRAIN = participation_pb2.Participate.KIND_TRAIN


def in_turn(rounds: int, *, size: int = 1, evaluation: str = "", more: str = "", straggler: str = "") -> bytes:
    found = job(rounds=rounds, size=size, straggler=straggler, evaluation=f"before_training = false\n{evaluation}")
    return found + MOMENTUM + f"[aggregation]\nfragments = 2\n{more}\n".encode()


def update_of(version: int, name: str = "") -> Values:
    """The elements of the fragment of a round: multiples of 1/64, which the sum holds exactly."""
    _, count = PARTS[version % 2]
    seed = [version, *name.encode()]
    return (np.random.default_rng(seed).integers(-64, 64, count) / 64).astype(np.float32)


def reference(means: list[Values], *, averaged: bool = False) -> list[Values]:
    """The models after each round, by plain arithmetic (FedAvgM with Nesterov's momentum) on the round's part alone."""
    weights, momentum = np.zeros(LAYOUT.size, np.float32), np.zeros(LAYOUT.size, np.float32)
    models = []
    for version, mean in enumerate(means):
        first, count = PARTS[version % 2]
        part, step = slice(first, first + count), mean.astype(np.float64)
        if averaged and part.start == 20:
            weights[part] = weights[part] + step
        else:
            new = momentum[part].astype(np.float64) * 0.5 + step
            weights[part] = weights[part].astype(np.float64) + (new * 0.5 + step) * 0.25
            momentum[part] = new
        models.append(weights.copy())
    return models


async def taken(client: Client, federation: Federation, version: int) -> Key:
    """The next invitation to train, which must be for the fragment of this version; its grant is checked too."""
    task = await client.invitation()
    assert task.kind == TRAIN
    first, count = PARTS[version % 2]
    assert [(span.offset, span.block, span.count) for span in task.ranges] == [(first, count, 1)]
    grant = await federation.coordinator.grant_upload(client.name, task.key.run, task.key.round, task.key.attempt)
    assert (grant.first, grant.elements) == (first, count)
    return task.key


async def played(client: Client, federation: Federation, version: int) -> Key:
    key = await taken(client, federation, version)
    await client.report(key, update_of(version), first=PARTS[version % 2][0])
    return key


async def released(federation: Federation, run: str, version: int) -> None:
    await federation.state(run, lambda state: state.version > version)


async def model_of(federation: Federation, run: str) -> Values:
    row = await federation.store.reader.run(lambda connection: runs.get(connection, run))
    return federation.model(row.current_model)


async def test_each_round_updates_its_own_fragment_and_its_own_momentum(federation: Federation) -> None:
    (alice,) = await federation.clients("alice")
    run = await federation.submit(in_turn(5, evaluation="final = true"))
    for version, expected in enumerate(reference([update_of(version) for version in range(5)])):
        await played(alice, federation, version)
        await released(federation, run, version)
        np.testing.assert_array_equal(await model_of(federation, run), expected)
    evaluation = await alice.invitation()
    assert not evaluation.ranges
    await alice.evaluate(evaluation.key, mean=1.0)
    assert (await federation.ended(run)).status == "finished"


async def test_evaluations_and_retries_do_not_advance_the_fragment(federation: Federation) -> None:
    alice, bob = await federation.clients("alice", "bob")
    run = await federation.submit(in_turn(4, size=2, evaluation="every = 1\nfinal = false"))
    numbers = []
    for version in range(4):
        if version in (1, 2):  # an attempt that fails, with one update in it already
            await taken(bob, federation, version)
            at = await taken(alice, federation, version)
            await alice.report(at, np.ones(PARTS[version % 2][1], np.float32), first=PARTS[version % 2][0])
            await bob.reply(at, "declined", "battery")
        numbers += [(await played(client, federation, version)).round for client in (alice, bob)]
        for client in (alice, bob):
            task = await client.invitation()
            assert task.kind != TRAIN
            assert not task.ranges
            await client.evaluate(task.key, mean=1.0)
    assert (await federation.ended(run)).status == "finished"
    assert numbers == [0, 0, 2, 2, 4, 4, 6, 6]  # the odd ones are the evaluations'
    expected = reference([update_of(version) for version in range(4)])[-1]  # equal updates: their mean is theirs
    np.testing.assert_array_equal(await model_of(federation, run), expected)


async def test_tensors_that_are_averaged_gather_no_momentum_in_their_rounds_either(federation: Federation) -> None:
    (alice,) = await federation.clients("alice")
    run = await federation.submit(in_turn(4, evaluation="final = false", more='averaged = ["b"]'))
    for version in range(4):
        await played(alice, federation, version)
    await federation.ended(run)
    expected = reference([update_of(version) for version in range(4)], averaged=True)[-1]
    np.testing.assert_array_equal(await model_of(federation, run), expected)


async def test_a_server_that_comes_back_goes_on_with_the_fragment(tmp_path: Path) -> None:
    """The server is stopped in the middle of every round, with one of its updates in the spool."""
    updates = [(update_of(version, "alice").astype(np.float64) + update_of(version, "bob")) / 2 for version in range(4)]
    expected = reference([mean.astype(np.float32) for mean in updates])[-1]
    run = ""
    for version in range(4):
        first = PARTS[version % 2][0]
        async with opened(tmp_path / "data") as federation:
            alice, bob = await federation.clients("alice", "bob")
            run = run or await federation.submit(in_turn(4, size=2, evaluation="final = false"))
            key = await taken(alice, federation, version)
            await alice.report(key, update_of(version, "alice"), first=first)
        async with opened(tmp_path / "data") as federation:
            alice, bob = await federation.clients("alice", "bob")
            federation.submitted[run] = federation.active(run)
            await bob.report(await taken(bob, federation, version), update_of(version, "bob"), first=first)
            if version < 3:
                await released(federation, run, version)
            else:
                await federation.ended(run)
                np.testing.assert_array_equal(await model_of(federation, run), expected)


async def test_more_fragments_than_tensors_are_refused_at_submit(federation: Federation) -> None:
    with pytest.raises(InvalidRequestError, match="the model has 2 tensors") as refused:
        await federation.submit(in_turn(1).replace(b"fragments = 2", b"fragments = 3"))
    assert refused.value.detail.code == "job.fragments"
    assert not await federation.store.reader.run(runs.listed, project=None)
