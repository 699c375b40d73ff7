"""Frozen tensors in a run of the daemon: their place in the model, the requested elements, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.stores import runs
from atoll.wire.v1 import participation_pb2
from tests.server.runs.federation import LAYOUT, Client, Federation, job

W, B = 20, 4
"""Elements of the model's tensors; ``w``, which is first in the file, is frozen."""
VALUES = np.linspace(0, 3, W + B, dtype=np.float32)


def freezing(patterns: str = '"w"', rounds: int = 2) -> bytes:
    return job(rounds=rounds, size=1, evaluation="before_training = false\nfinal = true") + (
        f"[aggregation]\nfrozen = [{patterns}]\n".encode()
    )


async def trained(client: Client, federation: Federation) -> participation_pb2.Participate:
    """The next task to train, with its requested elements."""
    task = await client.invitation()
    assert list(task.frozen) == ["w"]
    assert [(span.offset, span.block, span.count) for span in task.ranges] == [(0, B, 1)]
    grant = await federation.coordinator.grant_upload(client.name, task.key.run, task.key.round, task.key.attempt)
    assert (grant.first, grant.elements) == (0, B)
    return task


async def test_the_frozen_tensor_comes_last_and_keeps_its_bits(federation: Federation) -> None:
    assert [tensor.name for tensor in LAYOUT.tensors] == ["w", "b"]
    (alice,) = await federation.clients("alice")
    run = await federation.submit(freezing(), VALUES)
    for _ in range(2):
        task = await trained(alice, federation)
        (model,) = task.inputs
        assert [tensor.name for tensor in model.layout.tensors] == ["b", "w"]
        await alice.report(task.key, np.full(B, 0.5, np.float32))
    evaluation = await alice.invitation()
    assert not evaluation.ranges
    await alice.evaluate(evaluation.key, mean=1.0)
    assert (await federation.ended(run)).status == "finished"
    row = await federation.store.reader.run(lambda connection: runs.get(connection, run))
    found = np.frombuffer(federation.model(row.current_model).tobytes(), np.float32)
    np.testing.assert_array_equal(found, np.concatenate([VALUES[W:] + 1.0, VALUES[:W]]))


async def test_a_run_whose_frozen_tensors_are_last_begins_with_the_blob_that_was_sent(federation: Federation) -> None:
    await federation.clients("alice")
    run = await federation.submit(freezing('"b"'), VALUES)
    row = await federation.store.reader.run(lambda connection: runs.get(connection, run))
    np.testing.assert_array_equal(federation.model(row.initial_model), VALUES)


@pytest.mark.parametrize("patterns", ['"embeddings.*"', '"*"'])
async def test_patterns_that_match_nothing_or_everything_are_refused_at_submit(
    federation: Federation, patterns: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        await federation.submit(freezing(patterns))
    assert refused.value.detail.code == "job.frozen"
    assert not await federation.store.reader.run(runs.listed, project=None)
