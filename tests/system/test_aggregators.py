"""Aggregators: rounds through them give the same bits as without, through kills and lost connections."""

from __future__ import annotations

import pytest

from tests.system.aggregators import Site
from tests.system.conftest import Hire, Serve
from tests.system.processes import Nursery
from tests.system.reference import JOB, MODEL, ROUNDS, SIZE

pytestmark = pytest.mark.system


def test_small_updates_through_an_aggregator_give_the_same_bits(
    serve: Serve, processes: Nursery, hire: Hire, reference_model: bytes
) -> None:
    server = serve("upstream")
    site = Site(processes, server, "north").start()
    crew, tokens = hire(server), site.tokens(SIZE - 1)
    clients = [crew.start("Steady", index=index, token=token) for index, token in enumerate(tokens)]
    clients.append(crew.start("Steady", index=SIZE - 1))
    run = server.operator.submit(JOB, MODEL)
    server.operator.finished(run)
    assert server.operator.model(run) == reference_model
    for client in clients:
        client.wait("reported", count=ROUNDS)
    assert site.metric("atoll_aggregator_participants") == SIZE - 1
