"""Participants with unary check-ins, as real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.aggregators import Site
from tests.system.conftest import Hire, Serve
from tests.system.processes import Nursery
from tests.system.reference import JOB, MODEL, ROUNDS, SIZE, assert_undisturbed
from tests.system.standbys import OFTEN

pytestmark = pytest.mark.system

UNARY = ("--check-in", "unary")


def settings(folder: Path) -> tuple[str, str]:
    """A server with a low rate of check-ins per second."""
    file = folder / "server.toml"
    file.write_text(OFTEN)
    return "--config", str(file)


def test_rounds_without_streams_give_the_same_bits(
    serve: Serve, hire: Hire, reference_model: bytes, tmp_path: Path
) -> None:
    server = serve("phones", *settings(tmp_path))
    crew = hire(server)
    clients = [crew.start("Steady", *UNARY, index=index) for index in range(SIZE)]
    run = server.operator.submit(JOB, MODEL)
    server.operator.finished(run)
    assert_undisturbed(server.operator, run, clients, ROUNDS)
    assert server.operator.model(run) == reference_model
    assert clients[0].events("checked_in")


def test_a_task_survives_the_server_that_gave_it(
    serve: Serve, hire: Hire, reference_model: bytes, tmp_path: Path
) -> None:
    server = serve("phones", *settings(tmp_path))
    crew = hire(server)
    steady = [crew.start("Steady", *UNARY, index=index) for index in range(SIZE - 1)]
    held = crew.start("Held", *UNARY, index=SIZE - 1, rounds=[1])
    run = server.operator.submit(JOB, MODEL)
    held.wait("held")
    server.kill()
    server.start()
    held.go()
    server.operator.finished(run)
    assert_undisturbed(server.operator, run, [*steady, held], ROUNDS)
    assert server.operator.model(run) == reference_model


def test_an_aggregator_takes_participants_with_streams_only(serve: Serve, processes: Nursery, hire: Hire) -> None:
    server = serve("upstream")
    site = Site(processes, server, "north").start()
    client = hire(server).start("Steady", *UNARY, index=0, token=site.tokens(1)[0])
    client.process.wait_for_log("an aggregator takes participants with streams only")
