"""The server is killed repeatedly in one run, at random moments (from a seed), and in every state of a run."""

from __future__ import annotations

import random
import signal

import pytest

from tests.system.conftest import Hire, Serve
from tests.system.dying_server import ANY
from tests.system.operators import PAUSED, is_over, job_toml
from tests.system.reference import (
    KILLED_JOB,
    KILLED_MODEL,
    KILLED_ROUNDS,
    MODEL,
    SIZE,
    assert_close,
    assert_undisturbed,
    averaged,
    shares_of,
)
from tests.system.servers import Server

pytestmark = pytest.mark.system

KILLS = 5
LATEST = 200
"""About as many moments as half of the run has."""


def fatal_moments(seed: int) -> list[str]:
    """Moments at which the server dies, early and late ones equally often."""
    draw = random.Random(f"kills {seed}")
    return [f"{ANY}:{int(LATEST ** draw.random())}" for _ in range(KILLS)]


def has_ended(server: Server, run: str) -> bool:
    """Whether the run ends before its server dies; if the server lives long enough, all participants return."""
    try:
        server.operator.until(run, lambda seen: seen.connected == SIZE or is_over(seen), "going on")
    except AssertionError:
        return False
    server.went_on("all participants were back")
    try:
        server.operator.ended(run)
    except AssertionError:
        return False
    return True


def test_killed_at_random_moments_again_and_again_the_run_ends_with_the_same_bits(
    serve: Serve, hire: Hire, killed_undisturbed: bytes, fault_seed: int
) -> None:
    """Even seeds with two worker processes."""
    server = serve("mortal", "--workers", str(2 - fault_seed % 2))
    clients = hire(server, eager=True).steady(SIZE)
    for client in clients:
        client.wait("connected")
    run = server.operator.submit(KILLED_JOB, KILLED_MODEL)
    server.kill()
    for moment in fatal_moments(fault_seed):
        if has_ended(server.start(dies=moment), run):
            server.kill()
        server.died()
    server.start()
    server.operator.finished(run)
    assert server.operator.model(run) == killed_undisturbed, server.deaths
    assert_undisturbed(server.operator, run, clients, KILLED_ROUNDS)


def test_killed_between_attempts_while_paused_and_as_it_ends_the_run_goes_on(serve: Serve, hire: Hire) -> None:
    """The states that an undisturbed run never sees, and the last one."""
    server = serve("states")
    crew = hire(server, eager=True)
    clients = [crew.add("Steady", index=0), crew.add("Crashing", index=1, attempts=1)]
    toml = job_toml(
        job={"name": "states", "rounds": 1}, cohort={"size": 2, "quorum": 2}, straggler={"retry_delay_s": 1.0}
    )
    run = server.operator.submit(toml, MODEL)
    server.kill()
    server.start(dies="before member_failed:1")
    for client in clients:
        client.start()
    server.died()
    for moment in (
        "after member_failed:1",  # abandoned, members have not been told yet
        "after retry_due:1",
    ):
        server.start(dies=moment)
        server.died()
        server.went_on(moment)
    for client in clients:  # the only round must not end before the run is paused
        client.process.send(signal.SIGSTOP)
    server.start(dies="after pause_requested:1")
    with pytest.raises(Exception, match="UNAVAILABLE"):
        server.operator.pause(run)
    server.died()
    server.start()
    operator = server.operator
    operator.until(run, lambda seen: seen.summary.status == PAUSED or "pauses" in seen.summary.reason, "to be paused")
    server.went_on("pausing")
    server.kill()
    server.start(dies="after Finish:1")
    server.operator.resume(run)
    for client in clients:
        client.process.send(signal.SIGCONT)
    server.died()
    server.went_on("the last round")
    server.start()
    server.operator.finished(run)
    server.went_on("the end")
    attempts = [(seen.round, seen.attempt, seen.phase) for seen in server.operator.rounds(run)]
    assert attempts == [(0, 0, "abandoned"), (0, 1, "released")]
    assert_close(server.operator.arrays(run), averaged(MODEL, shares_of([0, 1]), 0))
