"""Clocks that are an hour off, on both sides, and a clock that is set while a round is open."""

from __future__ import annotations

import signal
import time

import pytest

from tests.patience import window_s
from tests.system.conftest import Hire
from tests.system.operators import job_toml, seconds_since
from tests.system.processes import Nursery
from tests.system.reference import JOB, MODEL, ROUNDS, assert_undisturbed
from tests.system.servers import Server

pytestmark = pytest.mark.system

HOUR_S = 3600.0


def test_clocks_an_hour_off_and_one_that_is_set_change_nothing(
    processes: Nursery, hire: Hire, reference_model: bytes
) -> None:
    """The server is an hour ahead of TLS, then an hour behind it; two participants are as far off the other way."""
    server = Server(processes, "ahead")
    server.start(skew_s=HOUR_S)
    crew = hire(server)
    held = crew.add("Held", index=0, rounds=[1])
    others = [crew.add("Steady", index=1), crew.add("Steady", index=2)]
    clients = [held, *others]
    for client, skew_s in zip(clients, (-HOUR_S, 2 * HOUR_S, 0.0), strict=True):
        client.skew_s = skew_s
        client.start()
    run = server.operator.submit(JOB, MODEL)
    held.wait("held")
    server.process.send(signal.SIGUSR1)
    held.go()
    server.operator.finished(run)
    assert server.operator.model(run) == reference_model
    assert_undisturbed(server.operator, run, clients, ROUNDS)
    newcomer = crew.start("Steady", index=3)  # its certificate was made an hour ago, by the clock that was set back
    newcomer.wait("connected")

    # A round's deadline is neither sooner nor later for it, and what was taken down of it is right.
    window = window_s()
    toml = job_toml(
        job={"name": "window", "rounds": 1}, cohort={"size": 5, "quorum": 1}, straggler={"report_window_s": window}
    )
    late = crew.start("Held", index=4, obey=False)
    run = server.operator.submit(toml, MODEL)
    late.wait("held")
    since = time.monotonic()
    server.process.send(signal.SIGUSR1)
    server.operator.finished(run)
    assert seconds_since(since) < HOUR_S / 2
    (seen,) = server.operator.rounds(run)
    assert window <= seen.closed_at - seen.opened_at < HOUR_S / 2
    server.close()
